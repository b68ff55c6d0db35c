/* Two processes with 200 ops each, driven by one epoll loop per process over the bell's fd. Ops are cancelled and freed
 * in every state, holders die, and processes are stopped while they wait and while they hold. No two hold a lock, every
 * op ends in time, and nothing stays behind.
 *
 *   epoll [SEED [MS]]      MS: how late an op may end, 500 if not said */
#include "ways.h"
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/mman.h>

enum { OPS = 200, KEYS = 8, ROUNDS = 2, PLAYERS = 2 };
static const unsigned WAIT_MS = 3000, TTL_MS = 400;
static double slack = 0.5;

/* What a process was stopped for, as the one who does it says, in us. */
struct player {
  pid_t pid;
  uint64_t stopped, since; /* since: 0, or when the present stop began */
};

static struct shared {
  struct player players[PLAYERS];
  uint64_t end[KEYS];   /* until when at least the holder's lease runs, in us; 0: given back */
  uint64_t fence[KEYS]; /* the newest that was seen */
  int granted, busy, cancelled, late;
} *shared;

static struct player *self;
static unsigned seed;
static unsigned dice(unsigned sides) {
  seed = seed * 1664525u + 1013904223u;
  return (seed >> 8) % sides;
}

static uint64_t now_us(void) { return (uint64_t)(seconds() * 1e6); }

static int entries(const char *folder) {
  DIR *dir = opendir(folder);
  CHECK(dir);
  int count = 0;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

static void name_key(char *name, int key) { snprintf(name, 16, "key %d", key); }

static uint64_t raise_to(uint64_t *place, uint64_t value) {
  uint64_t old = __atomic_load_n(place, __ATOMIC_SEQ_CST);
  while (old < value && !__atomic_compare_exchange_n(place, &old, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return old;
}

static double stopped(void) {
  uint64_t since = __atomic_load_n(&self->since, __ATOMIC_SEQ_CST);
  return (double)(__atomic_load_n(&self->stopped, __ATOMIC_SEQ_CST) + (since ? now_us() - since : 0)) / 1e6;
}

struct waiting {
  buflock_op *op; /* NULL: it is over, and perhaps holds */
  int key, holds, newer; /* newer: a later holder was there before */
  unsigned wait_ms;
  uint32_t id;
  double next_look, deadline, stopped;
  uint64_t end;
  char token[BUFLOCK_TOKEN_SIZE];
};

static void begin(buflock_t *lock, struct waiting *wait) {
  char name[16];
  memset(wait, 0, sizeof *wait);
  wait->key = (int)dice(KEYS);
  name_key(name, wait->key);
  wait->wait_ms = dice(2) ? WAIT_MS : 1 + dice(WAIT_MS / 3); /* some end without the lock */
  CHECK(buflock_op_acquire(lock, name, strlen(name), TTL_MS, wait->wait_ms, &wait->op) == BUFLOCK_OK);
  wait->stopped = stopped();
}

/* It has the lock: nobody else's lease may run. */
static void hold(struct waiting *wait, uint64_t asked, uint64_t fence) {
  uint64_t last = raise_to(&shared->fence[wait->key], fence);
  CHECK(last != fence);
  wait->newer = last > fence;
  wait->end = asked + TTL_MS * 1000;
  uint64_t other = __atomic_load_n(&shared->end[wait->key], __ATOMIC_SEQ_CST);
  CHECK(now_us() >= other);
  raise_to(&shared->end[wait->key], wait->end);
  wait->holds = 1;
  wait->next_look = dice(3) ? 0 : seconds() + (1 + dice(30)) / 1000.0; /* beside the loop's other work */
}

static void give_back(buflock_t *lock, struct waiting *wait) {
  char name[16];
  name_key(name, wait->key);
  wait->holds = 0;
  if (dice(50) == 0) return; /* forgotten: its lease ends it */
  uint64_t mine = wait->end;
  __atomic_compare_exchange_n(&shared->end[wait->key], &mine, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  int answer = release(lock, name, wait->token);
  CHECK(answer == BUFLOCK_OK || answer == BUFLOCK_EXPIRED || answer == BUFLOCK_TAKEN);
  CHECK(answer != BUFLOCK_OK ? now_us() >= wait->end : !wait->newer);
  if (answer) __atomic_add_fetch(&shared->late, 1, __ATOMIC_SEQ_CST);
}

/* One look at an op; 1: it is over. */
static int look(buflock_t *lock, struct waiting *wait) {
  if (wait->holds) {
    give_back(lock, wait);
    return 1;
  }
  buflock_step step = {.size = sizeof step};
  buflock_info info = {.size = sizeof info};
  unsigned fate = dice(60);
  if (fate == 0) buflock_op_cancel(wait->op), __atomic_add_fetch(&shared->cancelled, 1, __ATOMIC_SEQ_CST);
  uint64_t asked = now_us();
  CHECK(buflock_op_next(wait->op, &step) == BUFLOCK_OK);
  if (!wait->deadline) wait->deadline = seconds() + wait->wait_ms / 1000.0; /* it began with the first question */
  CHECK(seconds() < wait->deadline + slack + stopped() - wait->stopped);
  if (step.kind != BUFLOCK_STEP_DONE) {
    CHECK((step.kind == BUFLOCK_STEP_BELL && step.id) || step.kind == BUFLOCK_STEP_SLEEP);
    CHECK(step.ms >= 1 && step.ms <= 500 && step.ms <= (wait->deadline - (double)asked / 1e6) * 1000 + 2);
    wait->id = step.id;
    wait->next_look = seconds() + step.ms / 1000.0;
    if (fate != 1) return 0;
  } else if (fate != 2) {
    int answer = buflock_op_finish(wait->op, wait->token, &info);
    CHECK(answer == BUFLOCK_OK || answer == BUFLOCK_BUSY);
    __atomic_add_fetch(answer ? &shared->busy : &shared->granted, 1, __ATOMIC_SEQ_CST);
    if (answer == BUFLOCK_OK) hold(wait, asked, info.fence);
  }
  buflock_op_free(wait->op); /* waiting, or done and not fetched: it gives back what it has */
  wait->op = NULL;
  return !wait->holds;
}

static int is_open(const struct waiting *wait) { return wait->op || wait->holds; }

static void read_bell(buflock_t *lock, struct waiting *waits) {
  uint32_t ids[64];
  size_t told;
  CHECK(buflock_bell_read(lock, ids, 64, &told) == BUFLOCK_OK);
  for (size_t t = 0; t < told; t++)
    for (int i = 0; i < OPS; i++)
      if (waits[i].op && waits[i].id == ids[t]) waits[i].next_look = 0;
}

static void serve(buflock_t *lock) {
  static struct waiting waits[OPS];
  struct epoll_event event = {.events = EPOLLIN};
  int bell, loop = epoll_create1(EPOLL_CLOEXEC), left = OPS;
  CHECK(loop >= 0 && buflock_bell_fd(lock, &bell) == BUFLOCK_OK && !epoll_ctl(loop, EPOLL_CTL_ADD, bell, &event));
  for (int i = 0; i < OPS; i++) begin(lock, &waits[i]);
  while (left > 0) {
    double soonest = seconds() + 1;
    for (int i = 0; i < OPS; i++) {
      if (is_open(&waits[i]) && seconds() >= waits[i].next_look) left -= look(lock, &waits[i]);
      if (is_open(&waits[i]) && waits[i].next_look < soonest) soonest = waits[i].next_look;
    }
    double rest = (soonest - seconds()) * 1000;
    if (left > 0 && epoll_wait(loop, &event, 1, rest < 0 ? 0 : (int)rest + 1) == 1) read_bell(lock, waits);
  }
  close(loop);
}

static void play(buflock_t *lock, int number, unsigned with) {
  int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  seed = with;
  self = &shared->players[number];
  memset(self, 0, sizeof *self);
  serve(lock);
  buflock_free(lock);
  CHECK(entries("/proc/self/task") == threads && entries("/proc/self/fd") <= fds);
  _exit(0);
}

/* A holder that dies with its locks. */
static void die_holding(buflock_t *lock) {
  char token[BUFLOCK_TOKEN_SIZE], name[16];
  for (int key = 0; key < KEYS; key++) {
    name_key(name, key);
    acquire(lock, name, TTL_MS, 0, token);
  }
  kill(getpid(), SIGKILL);
}

/* Stops one, now and then beyond its lease. Its number is its own until it is reaped. */
static void stop_for(struct player *player, pid_t pid, unsigned ms) {
  __atomic_store_n(&player->since, now_us(), __ATOMIC_SEQ_CST);
  kill(pid, SIGSTOP);
  pause_ms(ms);
  kill(pid, SIGCONT);
  uint64_t now = now_us();
  __atomic_add_fetch(&player->stopped, now - player->since, __ATOMIC_SEQ_CST);
  __atomic_store_n(&player->since, 0, __ATOMIC_SEQ_CST);
}

static int has_ended(pid_t pid) {
  siginfo_t info = {0};
  CHECK(!waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT));
  return info.si_pid == pid;
}

static void storm(buflock_t *lock, unsigned with) {
  pid_t pids[PLAYERS], doomed;
  int stops = 0;
  memset(shared->end, 0, sizeof shared->end);
  for (int i = 0; i < PLAYERS; i++)
    if (!(pids[i] = fork())) play(lock, i, with + (unsigned)i);
  if (!(doomed = fork())) die_holding(lock);
  CHECK(reap(doomed) == 128 + SIGKILL);
  seed = with ^ 1234567;
  while (!has_ended(pids[0]) || !has_ended(pids[1])) {
    unsigned one = dice(PLAYERS);
    stop_for(&shared->players[one], pids[one], dice(6) ? 1 + dice(50) : TTL_MS + dice(100));
    stops++;
    pause_ms(1 + dice(30));
  }
  CHECK(reap(pids[0]) == 0 && reap(pids[1]) == 0 && stops > 3);
}

static void what_was_forgotten_runs_out(buflock_t *lock) {
  pause_ms(TTL_MS + 10);
  for (int key = 0; key < KEYS; key++) {
    char name[16], token[BUFLOCK_TOKEN_SIZE];
    name_key(name, key);
    CHECK(acquire(lock, name, 1000, 0, token) == BUFLOCK_OK && release(lock, name, token) == BUFLOCK_OK);
  }
}

/* It waits and is stopped, and so is at the head of the kernel's queue: the release that wakes it must reach another. */
static void a_stopped_waiter_keeps_nobody(way *its, way *others) {
  buflock_t *lock = table_lock(1, ""), *holder = table_lock(1, "");
  char token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(holder, "k", 60000, 0, token) == BUFLOCK_OK);
  pid_t waiter = fork(), releaser;
  if (!waiter) _exit(its(lock, 20000, mine) == BUFLOCK_OK && release(lock, "k", mine) == BUFLOCK_OK ? 0 : 1);
  pause_ms(100);
  kill(waiter, SIGSTOP);
  if (!(releaser = fork())) {
    pause_ms(110);
    _exit(release(holder, "k", token) == BUFLOCK_OK ? 0 : 1);
  }
  double asked = seconds();
  CHECK(others(lock, 20000, mine) == BUFLOCK_OK && seconds() - asked < 0.11 + slack);
  CHECK(reap(releaser) == 0 && !has_ended(waiter));
  CHECK(release(lock, "k", mine) == BUFLOCK_OK);
  kill(waiter, SIGCONT);
  CHECK(reap(waiter) == 0);
  buflock_free(lock);
  buflock_free(holder);
}

/* It holds and is stopped beyond its lease: the lock is another's then, and it is told. */
static void a_stopped_holder_loses(way *others) {
  buflock_t *lock = table_lock(1, "");
  char token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE];
  int answer, ready[2];
  CHECK(!pipe(ready));
  pid_t holder = fork();
  if (!holder) {
    CHECK(acquire(lock, "k", TTL_MS, 0, token) == BUFLOCK_OK && write(ready[1], "", 1) == 1);
    raise(SIGSTOP);
    answer = release(lock, "k", token);
    _exit(answer == BUFLOCK_TAKEN ? 0 : 1);
  }
  CHECK(read(ready[0], token, 1) == 1);
  double asked = seconds();
  CHECK(others(lock, 20000, mine) == BUFLOCK_OK && seconds() - asked < TTL_MS / 1000.0 + slack);
  kill(holder, SIGCONT);
  CHECK(reap(holder) == 0 && release(lock, "k", mine) == BUFLOCK_OK);
  close(ready[0]);
  close(ready[1]);
  buflock_free(lock);
}

int main(int count, char **arguments) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  unsigned start = count > 1 ? (unsigned)atol(arguments[1]) : (unsigned)time(NULL);
  if (count > 2) slack = atol(arguments[2]) / 1000.0;
  printf("seed %u\n", start);
  fflush(stdout);
  a_stopped_waiter_keeps_nobody(by_acquire, by_acquire);
  a_stopped_waiter_keeps_nobody(by_acquire, by_bell);
  a_stopped_waiter_keeps_nobody(by_bell, by_bell);
  a_stopped_waiter_keeps_nobody(by_run, by_run);
  a_stopped_holder_loses(by_acquire);
  a_stopped_holder_loses(by_bell);
  buflock_t *lock = table_lock(0, "");
  for (int round = 0; round < ROUNDS; round++) storm(lock, start + (unsigned)round * 7);
  what_was_forgotten_runs_out(lock);
  buflock_free(lock);
  printf("granted %d, busy %d, cancelled %d, too late %d\n", shared->granted, shared->busy, shared->cancelled, shared->late);
  CHECK(shared->granted > OPS);
  puts("ok epoll");
  return 0;
}
