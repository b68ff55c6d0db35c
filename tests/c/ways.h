/* The ways to wait for the lock "k". Each answers a status, and with OK its token holds it. */
#ifndef WAYS_H
#define WAYS_H
#include "check.h"
#include <poll.h>

enum { WAY_TTL_MS = 60000 };
typedef int way(buflock_t *, unsigned wait_ms, char *token);

static inline int by_acquire(buflock_t *lock, unsigned wait_ms, char *token) {
  return acquire(lock, "k", WAY_TTL_MS, wait_ms, token);
}

static inline int by_await(buflock_t *lock, unsigned wait_ms, char *token) {
  int answer = buflock_await(lock, "k", 1, wait_ms);
  return answer ? answer : acquire(lock, "k", WAY_TTL_MS, 0, token);
}

static inline int by_run(buflock_t *lock, unsigned wait_ms, char *token) {
  buflock_op *op;
  int answer;
  CHECK(buflock_op_acquire(lock, "k", 1, WAY_TTL_MS, wait_ms, &op) == BUFLOCK_OK);
  while ((answer = buflock_op_run(op, 1000)) == BUFLOCK_INTERRUPTED) {
  }
  CHECK(answer == BUFLOCK_OK);
  answer = buflock_op_finish(op, token, NULL);
  buflock_op_free(op);
  return answer;
}

static inline int by_bell(buflock_t *lock, unsigned wait_ms, char *token) {
  buflock_op *op;
  buflock_step step = {.size = sizeof step};
  int fd;
  CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_OK);
  CHECK(buflock_op_acquire(lock, "k", 1, WAY_TTL_MS, wait_ms, &op) == BUFLOCK_OK);
  while (buflock_op_next(op, &step) == BUFLOCK_OK && step.kind != BUFLOCK_STEP_DONE) {
    struct pollfd entry = {fd, POLLIN, 0};
    uint32_t ids[4];
    size_t told;
    CHECK(step.kind == BUFLOCK_STEP_BELL && step.ms >= 1 && step.ms <= 500);
    poll(&entry, 1, (int)step.ms);
    CHECK(buflock_bell_read(lock, ids, 4, &told) == BUFLOCK_OK);
  }
  int answer = buflock_op_finish(op, token, NULL);
  buflock_op_free(op);
  return answer;
}

#endif
