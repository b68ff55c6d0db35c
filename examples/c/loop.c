/* A lock in an event loop that never blocks: the loop goes on ticking while it waits for the lock.
 *
 *   cc loop.c -o loop $(pkg-config --cflags --libs buflock) && ./loop [URL]
 *
 * Another process, forked here, holds the lock for half a second. What is waited for is one op; a server has one per
 * request, finds it by the id that the bell says, and keeps the times of all in a heap. */
#include <buflock.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* Holds the lock for a while, in a process of its own. */
static void hold_for_a_while(buflock_t *lock) {
  char token[BUFLOCK_TOKEN_SIZE];
  if (buflock_acquire(lock, "page:/", 6, 5000, 0, token, NULL) != BUFLOCK_OK) fail("holder", buflock_last_error());
  if (fork()) return;
  usleep(500000);
  buflock_release(lock, "page:/", 6, token);
  buflock_free(lock);
  _exit(0);
}

int main(int count, char **arguments) {
  buflock_t *lock;
  buflock_op *op;
  buflock_step step = {.size = sizeof step};
  char token[BUFLOCK_TOKEN_SIZE];
  int bell, ticks = 0;
  if (buflock_new(count > 1 ? arguments[1] : "shm:loop", NULL, &lock)) fail("new", buflock_last_error());
  if (buflock_bell_fd(lock, &bell)) fail("bell", buflock_last_error());
  hold_for_a_while(lock);
  if (buflock_op_acquire(lock, "page:/", 6, 5000, 10000, &op)) fail("acquire", buflock_last_error());

  long begin = now_ms(), look = begin, tick = begin;
  do {
    struct pollfd entry = {bell, POLLIN, 0};
    long next = look < tick ? look : tick, rest = next - now_ms();
    if (poll(&entry, 1, rest > 0 ? (int)rest : 0) == 1) { /* the bell: look at the ops that it names */
      uint32_t id;
      size_t told;
      while (buflock_bell_read(lock, &id, 1, &told) == BUFLOCK_OK && told)
        if (id == step.id) look = now_ms();
    }
    if (now_ms() >= tick) ticks++, tick += 10; /* the loop's other work */
    if (now_ms() >= look) {
      if (buflock_op_next(op, &step)) fail("op", buflock_op_error(op));
      look = now_ms() + step.ms;
    }
  } while (step.kind != BUFLOCK_STEP_DONE);

  int answer = buflock_op_finish(op, token, NULL);
  if (answer < 0) fail("finish", buflock_op_error(op));
  printf("%s after %ld ms, and %d ticks meanwhile\n", buflock_status_name(answer), now_ms() - begin, ticks);
  buflock_op_free(op);
  if (answer == BUFLOCK_OK) buflock_release(lock, "page:/", 6, token);
  buflock_free(lock);
  wait(NULL);
  return answer == BUFLOCK_OK && ticks > 20 ? 0 : 1;
}
