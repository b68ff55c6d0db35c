/* Operations in steps: every call in every state. */
#include "check.h"
#include <sys/time.h>

static buflock_op *acquire_op(buflock_t *lock, const char *key, unsigned ttl_ms, unsigned wait_ms) {
  buflock_op *op = NULL;
  CHECK(buflock_op_acquire(lock, key, strlen(key), ttl_ms, wait_ms, &op) == BUFLOCK_OK && op);
  return op;
}

static buflock_step next(buflock_op *op) {
  buflock_step step = {.size = sizeof step};
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK);
  return step;
}

static int is_held(buflock_t *lock, const char *key) {
  return buflock_inspect(lock, key, strlen(key), NULL, NULL, 0) == BUFLOCK_BUSY;
}

static void goes_from_first_step_to_result(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], same[BUFLOCK_TOKEN_SIZE];
  buflock_info info = {.size = sizeof info};
  buflock_op *op = acquire_op(lock, "k", 5000, 0);
  CHECK(!is_held(lock, "k")); /* nothing is done before the first step */
  CHECK(buflock_op_finish(op, token, NULL) == BUFLOCK_ARGUMENT && strstr(buflock_op_error(op), "op is not done"));
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && next(op).kind == BUFLOCK_STEP_DONE && is_held(lock, "k"));
  CHECK(buflock_op_finish(op, NULL, NULL) == BUFLOCK_ARGUMENT && strstr(buflock_op_error(op), "token is NULL"));
  CHECK(buflock_op_finish(op, token, &info) == BUFLOCK_OK && info.left_ms == 5000 && info.fence > 0);
  CHECK(buflock_op_finish(op, same, NULL) == BUFLOCK_OK && !strcmp(token, same));
  CHECK(buflock_op_cancel(op) == BUFLOCK_OK && is_held(lock, "k")); /* a fetched success stays */
  buflock_op_free(op);
  CHECK(is_held(lock, "k"));

  op = acquire_op(lock, "k", 1000, 0);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_finish(op, NULL, &info) == BUFLOCK_BUSY);
  CHECK(info.left_ms > 3000 && info.holder == (uint32_t)getpid());
  buflock_op_free(op);

  CHECK(buflock_op_extend(lock, "k", 1, token, 60000, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_DONE);
  CHECK(buflock_op_finish(op, NULL, NULL) == BUFLOCK_OK);
  buflock_op_free(op);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_OK && is_held(lock, "k"));
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && !is_held(lock, "k") && buflock_op_finish(op, NULL, NULL) == BUFLOCK_OK);
  buflock_op_free(op);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_OK && buflock_op_run(op, 0) == BUFLOCK_OK);
  CHECK(buflock_op_finish(op, NULL, NULL) == BUFLOCK_EXPIRED);
  buflock_op_free(op);
  CHECK(buflock_op_await(lock, "k", 1, 1000, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_DONE);
  CHECK(buflock_op_finish(op, NULL, NULL) == BUFLOCK_OK);
  buflock_op_free(op);
  buflock_free(lock);
}

static void inspects_and_breaks(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], holder[32], want[32];
  buflock_info info = {.size = sizeof info};
  buflock_op *op;
  snprintf(want, sizeof want, "pid %d", (int)getpid());
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  CHECK(buflock_op_inspect(lock, "k", 1, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_DONE);
  CHECK(buflock_op_finish(op, NULL, &info) == BUFLOCK_BUSY && info.left_ms > 50000);
  CHECK(buflock_op_holder(op, holder, sizeof holder) == BUFLOCK_OK && !strcmp(holder, want));
  CHECK(buflock_op_holder(op, holder, 4) == BUFLOCK_OK && !strcmp(holder, "pid"));
  buflock_op_free(op);
  for (int broken = 0; broken < 2; broken++) {
    CHECK(buflock_op_break(lock, "k", 1, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_DONE);
    CHECK(buflock_op_finish(op, NULL, NULL) == (broken ? BUFLOCK_EXPIRED : BUFLOCK_OK));
    buflock_op_free(op);
  }
  CHECK(buflock_op_inspect(lock, "k", 1, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_DONE);
  CHECK(buflock_op_finish(op, NULL, &info) == BUFLOCK_OK && info.left_ms == 0);
  CHECK(buflock_op_holder(op, holder, sizeof holder) == BUFLOCK_OK && !*holder);
  buflock_op_free(op);
  buflock_free(lock);
}

static void what_nobody_uses_is_given_back(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  buflock_op *op = acquire_op(lock, "k", 60000, 0);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && is_held(lock, "k"));
  buflock_op_free(op); /* not fetched */
  CHECK(!is_held(lock, "k"));
  op = acquire_op(lock, "k", 60000, 0);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_cancel(op) == BUFLOCK_OK && !is_held(lock, "k"));
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_finish(op, token, NULL) == BUFLOCK_BUSY);
  buflock_op_free(op);

  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  op = acquire_op(lock, "k", 60000, 60000);
  CHECK(next(op).kind == BUFLOCK_STEP_SLEEP && buflock_op_cancel(op) == BUFLOCK_OK); /* no bell was asked for */
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_finish(op, NULL, NULL) == BUFLOCK_BUSY);
  buflock_op_free(op);
  op = acquire_op(lock, "k", 60000, 60000);
  CHECK(next(op).kind == BUFLOCK_STEP_SLEEP);
  buflock_op_free(op);
  CHECK(buflock_op_extend(lock, "k", 1, token, 1, &op) == BUFLOCK_OK);
  buflock_op_free(op); /* forgotten: neither extended nor released */
  CHECK(is_held(lock, "k"));
  CHECK(buflock_op_await(lock, "k", 1, 60000, &op) == BUFLOCK_OK && next(op).kind == BUFLOCK_STEP_SLEEP);
  CHECK(buflock_op_cancel(op) == BUFLOCK_OK && buflock_op_finish(op, NULL, NULL) == BUFLOCK_BUSY);
  buflock_op_free(op);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_OK);
  buflock_op_free(op); /* done all the same */
  CHECK(!is_held(lock, "k"));
  buflock_free(lock);
}

static void outlives_its_lock(void) {
  buflock_t *lock = table_lock(0, ""), *other = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], held[BUFLOCK_TOKEN_SIZE];
  int fd;
  CHECK(acquire(other, "busy", 60000, 0, held) == BUFLOCK_OK && buflock_bell_fd(lock, &fd) == BUFLOCK_OK);
  buflock_op *op = acquire_op(lock, "k", 60000, 0), *waiting = acquire_op(lock, "busy", 60000, 60000), *never;
  never = acquire_op(lock, "never", 60000, 0);
  CHECK(next(waiting).kind == BUFLOCK_STEP_BELL);
  buflock_free(lock);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_finish(op, token, NULL) == BUFLOCK_OK);
  CHECK(next(waiting).kind == BUFLOCK_STEP_SLEEP); /* the bell's thread is gone */
  CHECK(release(other, "k", token) == BUFLOCK_OK && release(other, "busy", held) == BUFLOCK_OK);
  CHECK(next(waiting).kind == BUFLOCK_STEP_DONE);
  buflock_op_free(op);
  buflock_op_free(waiting);
  buflock_op_free(never);
  CHECK(!is_held(other, "busy"));
  buflock_free(other);
}

static void belongs_to_its_process(void) {
  buflock_t *lock = table_lock(0, "");
  buflock_op *held = acquire_op(lock, "k", 60000, 0), *waiting = acquire_op(lock, "k", 60000, 60000);
  CHECK(next(held).kind == BUFLOCK_STEP_DONE && next(waiting).kind == BUFLOCK_STEP_SLEEP);
  pid_t child = fork();
  if (!child) {
    buflock_step step = {.size = sizeof step};
    char token[BUFLOCK_TOKEN_SIZE], want[64];
    snprintf(want, sizeof want, "made in process %d", (int)getppid());
    CHECK(buflock_op_next(waiting, &step) == BUFLOCK_ARGUMENT && strstr(buflock_op_error(waiting), want));
    CHECK(buflock_op_run(held, 0) == BUFLOCK_ARGUMENT && buflock_op_finish(held, token, NULL) == BUFLOCK_ARGUMENT);
    CHECK(buflock_op_cancel(held) == BUFLOCK_ARGUMENT);
    buflock_op_free(held); /* memory only */
    buflock_op_free(waiting);
    buflock_free(lock);
    exit(0);
  }
  CHECK(reap(child) == 0 && is_held(lock, "k"));
  buflock_op_free(held);
  CHECK(next(waiting).kind == BUFLOCK_STEP_DONE);
  buflock_op_free(waiting);
  CHECK(!is_held(lock, "k"));
  buflock_free(lock);
}

static void ends_in_time(void) {
  buflock_t *lock = table_lock(0, "&step=0.002&ratio=3&max_step=0.05"), *other = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(other, "k", 60000, 0, token) == BUFLOCK_OK);
  buflock_op *op = acquire_op(lock, "k", 1000, 300);
  double begin = seconds();
  unsigned want[] = {2, 6, 18, 50, 50};
  for (int i = 0;; i++) {
    buflock_step step = next(op);
    if (step.kind == BUFLOCK_STEP_DONE) break;
    CHECK(step.kind == BUFLOCK_STEP_SLEEP && step.ms >= 1 && step.ms <= 50);
    if (i < 5) CHECK(step.ms == want[i]);
    pause_ms(step.ms);
  }
  CHECK(seconds() - begin >= 0.3 && seconds() - begin < 3); /* the rest is for a loaded machine */
  CHECK(buflock_op_finish(op, NULL, NULL) == BUFLOCK_BUSY);
  buflock_op_free(op);
  CHECK(release(other, "k", token) == BUFLOCK_OK);
  buflock_free(lock);
  buflock_free(other);
}

static void other_structs_and_steps_not_asked_for(void) {
  buflock_t *lock = table_lock(0, "");
  buflock_op *op = acquire_op(lock, "k", 1000, 0);
  unsigned char room[128];
  for (uint32_t size = 8; size <= 96; size += 8) {
    memset(room, '#', sizeof room);
    memcpy(room, &size, 4);
    CHECK(buflock_op_next(op, (buflock_step *)(void *)room) == BUFLOCK_OK && !memcmp(room, &size, 4));
    CHECK(room[4] == BUFLOCK_STEP_DONE && room[size] == '#' && room[size - 1] == 0);
  }
  buflock_step step = {.size = 0};
  CHECK(buflock_op_next(op, &step) == BUFLOCK_ARGUMENT && says("step->size is 0"));
  const char *data;
  size_t size;
  CHECK(buflock_op_connected(op, 1) == BUFLOCK_ARGUMENT && strstr(buflock_op_error(op), "did not ask for"));
  CHECK(buflock_op_feed(op, "x", 1) == BUFLOCK_ARGUMENT && buflock_op_fail(op, "why") == BUFLOCK_ARGUMENT);
  CHECK(buflock_op_argument(op, 0, &data, &size) == BUFLOCK_ARGUMENT);
  CHECK(buflock_op_reply(op, BUFLOCK_REPLY_NIL, 0, NULL, 0) == BUFLOCK_ARGUMENT);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE); /* none of it did harm */
  buflock_op_free(op);
  CHECK(buflock_op_acquire(lock, "k", 1, 0, 0, &op) == BUFLOCK_ARGUMENT && says("ttl_ms is 0"));
  buflock_free(lock);
  CHECK(buflock_new("off:", NULL, &lock) == BUFLOCK_OK);
  char token[BUFLOCK_TOKEN_SIZE];
  int fd;
  op = acquire_op(lock, "k", 1000, 0);
  CHECK(next(op).kind == BUFLOCK_STEP_DONE && buflock_op_finish(op, token, NULL) == BUFLOCK_OK && strlen(token) == 32);
  buflock_op_free(op);
  CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_ARGUMENT && says("only shm: locks have a bell"));
  buflock_free(lock);
}

static volatile sig_atomic_t alarms;
static double last_alarm, slowest;

static void note(int number) {
  (void)number;
  double now = seconds();
  if (alarms && now - last_alarm > slowest) slowest = now - last_alarm;
  last_alarm = now;
  alarms++;
}

/* A driver that hands signals back: run, and do in between what a host's handlers ask for. */
static void signals_come_through(void) {
  buflock_t *lock = table_lock(0, ""), *other = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], held[BUFLOCK_TOKEN_SIZE];
  struct sigaction handler = {.sa_handler = note}; /* without SA_RESTART */
  struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
  CHECK(!sigaction(SIGALRM, &handler, NULL) && acquire(other, "k", 60000, 0, held) == BUFLOCK_OK);
  buflock_op *op = acquire_op(lock, "k", 60000, 60000);
  int interruptions = 0, answer;
  double begin = seconds();
  CHECK(!setitimer(ITIMER_REAL, &every, NULL));
  while ((answer = buflock_op_run(op, 50)) == BUFLOCK_INTERRUPTED) {
    if (++interruptions == 1000) CHECK(release(other, "k", held) == BUFLOCK_OK);
    CHECK(interruptions < 1100 && seconds() - begin < 60);
  }
  CHECK(!setitimer(ITIMER_REAL, &never, NULL));
  CHECK(answer == BUFLOCK_OK && interruptions >= 1000 && buflock_op_finish(op, token, NULL) == BUFLOCK_OK);
  CHECK(release(other, "k", token) == BUFLOCK_OK);
  buflock_op_free(op);

  CHECK(acquire(other, "k", 60000, 0, held) == BUFLOCK_OK);
  op = acquire_op(lock, "k", 60000, 60000);
  begin = seconds();
  CHECK(buflock_op_run(op, 120) == BUFLOCK_INTERRUPTED && seconds() - begin >= 0.11); /* the slice alone */
  CHECK(buflock_op_run(op, 0) == BUFLOCK_INTERRUPTED);
  buflock_op_free(op); /* as after a die in a handler: nothing stays behind */
  CHECK(release(other, "k", held) == BUFLOCK_OK && !is_held(other, "k"));
  buflock_free(lock);
  buflock_free(other);
}

int main(void) {
  goes_from_first_step_to_result();
  inspects_and_breaks();
  what_nobody_uses_is_given_back();
  outlives_its_lock();
  belongs_to_its_process();
  ends_in_time();
  other_structs_and_steps_not_asked_for();
  signals_come_through();
  puts("ok ops");
  return 0;
}
