/* Two processes with 200 ops each, driven by one epoll loop per process over the bell's fd. Ops are cancelled and freed
 * in every state, and holders die. No two hold a lock, every op ends in time, and nothing stays behind. */
#include "check.h"
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/mman.h>

enum { OPS = 200, KEYS = 8, ROUNDS = 3 };
static const unsigned WAIT_MS = 3000, TTL_MS = 400;

static struct shared {
  int holder[KEYS];                 /* the pid that holds it, as it believes */
  uint64_t fence[KEYS];             /* the newest that was seen */
  int granted, busy, cancelled;
} *shared;

static unsigned seed;
static unsigned dice(unsigned sides) {
  seed = seed * 1664525u + 1013904223u;
  return (seed >> 8) % sides;
}

struct waiting {
  buflock_op *op;
  int key;
  uint32_t id;
  double next_look, deadline;
};

static int entries(const char *folder) {
  DIR *dir = opendir(folder);
  CHECK(dir);
  int count = 0;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

static void name_key(char *name, int key) { snprintf(name, 16, "key %d", key); }

/* Under the lock: nobody newer has been here, and nobody else is here whose lease runs. */
static void use(buflock_t *lock, int key, const char *token, uint64_t fence) {
  char name[16];
  name_key(name, key);
  uint64_t last = __atomic_exchange_n(&shared->fence[key], fence, __ATOMIC_SEQ_CST);
  CHECK(last < fence);
  __atomic_store_n(&shared->holder[key], (int)getpid(), __ATOMIC_SEQ_CST);
  if (dice(50) == 0) return; /* forgotten: its lease ends it */
  int answer = release(lock, name, token);
  CHECK(answer == BUFLOCK_OK || answer == BUFLOCK_EXPIRED || answer == BUFLOCK_TAKEN);
}

static void begin(buflock_t *lock, struct waiting *wait) {
  char name[16];
  wait->key = (int)dice(KEYS);
  name_key(name, wait->key);
  CHECK(buflock_op_acquire(lock, name, strlen(name), TTL_MS, WAIT_MS, &wait->op) == BUFLOCK_OK);
  wait->deadline = seconds() + WAIT_MS / 1000.0;
  wait->next_look = 0;
  wait->id = 0;
}

/* One look at an op; 1: it is over. */
static int look(buflock_t *lock, struct waiting *wait) {
  buflock_step step = {.size = sizeof step};
  buflock_info info = {.size = sizeof info};
  char token[BUFLOCK_TOKEN_SIZE];
  unsigned fate = dice(60);
  if (fate == 0) buflock_op_cancel(wait->op), __atomic_add_fetch(&shared->cancelled, 1, __ATOMIC_SEQ_CST);
  CHECK(buflock_op_next(wait->op, &step) == BUFLOCK_OK);
  if (step.kind != BUFLOCK_STEP_DONE) {
    CHECK((step.kind == BUFLOCK_STEP_BELL && step.id) || step.kind == BUFLOCK_STEP_SLEEP);
    CHECK(step.ms >= 1 && step.ms <= 500 && seconds() < wait->deadline + 5); /* 5 s: for a machine that stood still */
    wait->id = step.id;
    wait->next_look = seconds() + step.ms / 1000.0;
    if (fate != 1) return 0;
  } else if (fate != 2) {
    int answer = buflock_op_finish(wait->op, token, &info);
    CHECK(answer == BUFLOCK_OK || answer == BUFLOCK_BUSY);
    __atomic_add_fetch(answer ? &shared->busy : &shared->granted, 1, __ATOMIC_SEQ_CST);
    if (answer == BUFLOCK_OK) use(lock, wait->key, token, info.fence);
  }
  buflock_op_free(wait->op); /* waiting, or done and not fetched: it gives back what it has */
  wait->op = NULL;
  return 1;
}

static void serve(buflock_t *lock, unsigned with) {
  static struct waiting waits[OPS];
  struct epoll_event event = {.events = EPOLLIN};
  int bell, loop = epoll_create1(EPOLL_CLOEXEC), left = OPS;
  seed = with;
  CHECK(loop >= 0 && buflock_bell_fd(lock, &bell) == BUFLOCK_OK && !epoll_ctl(loop, EPOLL_CTL_ADD, bell, &event));
  for (int i = 0; i < OPS; i++) begin(lock, &waits[i]);
  while (left > 0) {
    double now = seconds(), soonest = now + 1;
    for (int i = 0; i < OPS; i++) {
      if (waits[i].op && now >= waits[i].next_look) left -= look(lock, &waits[i]);
      if (waits[i].op && waits[i].next_look < soonest) soonest = waits[i].next_look;
    }
    double rest = (soonest - seconds()) * 1000;
    if (left > 0 && epoll_wait(loop, &event, 1, rest < 0 ? 0 : (int)rest + 1) == 1) {
      uint32_t ids[64];
      size_t told;
      CHECK(buflock_bell_read(lock, ids, 64, &told) == BUFLOCK_OK);
      for (size_t t = 0; t < told; t++)
        for (int i = 0; i < OPS; i++)
          if (waits[i].op && waits[i].id == ids[t]) waits[i].next_look = 0;
    }
  }
  close(loop);
}

int main(int count, char **arguments) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  unsigned start = count > 1 ? (unsigned)atol(arguments[1]) : (unsigned)time(NULL);
  printf("seed %u\n", start);
  fflush(stdout);
  buflock_t *lock = table_lock(0, "");
  int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int round = 0; round < ROUNDS; round++) {
    pid_t other = fork(), doomed = fork();
    if (!doomed) { /* a holder that dies with its locks, and with waits of its own; the two forks make two of it */
      char token[BUFLOCK_TOKEN_SIZE], name[16];
      for (int key = 0; key < KEYS; key++) {
        name_key(name, key);
        acquire(lock, name, TTL_MS, 0, token);
      }
      kill(getpid(), SIGKILL);
    }
    serve(lock, start + (unsigned)round * 7 + (other ? 1 : 0));
    CHECK(reap(doomed) == 128 + SIGKILL);
    if (!other) {
      buflock_free(lock);
      _exit(0);
    }
    CHECK(reap(other) == 0);
  }
  pause_ms(TTL_MS + 10); /* what was forgotten runs out */
  for (int key = 0; key < KEYS; key++) {
    char name[16], token[BUFLOCK_TOKEN_SIZE];
    name_key(name, key);
    CHECK(acquire(lock, name, 1000, 0, token) == BUFLOCK_OK && release(lock, name, token) == BUFLOCK_OK);
  }
  buflock_free(lock);
  CHECK(entries("/proc/self/task") == threads && entries("/proc/self/fd") <= fds);
  printf("granted %d, busy %d, cancelled %d\n", shared->granted, shared->busy, shared->cancelled);
  CHECK(shared->granted > OPS);
  puts("ok epoll");
  return 0;
}
