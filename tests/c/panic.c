/* A bug inside never takes the host along. Run with the library that has test hooks, and BUFLOCK_TEST=panic: then each
 * entry panics. In a build without unwinding this program would be aborted. All functions with a boundary are here. */
#include "check.h"

int main(void) {
  char token[BUFLOCK_TOKEN_SIZE] = "", json[64];
  buflock_t *lock = (buflock_t *)token; /* never looked at: the panic comes first */
  buflock_config *config = (buflock_config *)token;
  size_t length;
  complaints = 1;
  CHECK(freopen("/dev/null", "w", stderr)); /* each panic says where it happened */
  errno = 4711; /* no errno */
  CHECK(buflock_config_new() == NULL);
  CHECK(buflock_config_set(config, "ttl", "1") == BUFLOCK_PANIC);
  CHECK(buflock_new("off:", NULL, &lock) == BUFLOCK_PANIC);
  CHECK(buflock_acquire(lock, "k", 1, 1, 1, token, NULL) == BUFLOCK_PANIC);
  CHECK(buflock_extend(lock, "k", 1, token, 1) == BUFLOCK_PANIC);
  CHECK(buflock_release(lock, "k", 1, token) == BUFLOCK_PANIC);
  CHECK(buflock_drop(lock, "k", 1, token) == BUFLOCK_PANIC);
  CHECK(buflock_await(lock, "k", 1, 1) == BUFLOCK_PANIC);
  CHECK(buflock_inspect(lock, "k", 1, NULL, NULL, 0) == BUFLOCK_PANIC);
  CHECK(buflock_break(lock, "k", 1) == BUFLOCK_PANIC);
  CHECK(buflock_stats(lock, json, sizeof json, &length) == BUFLOCK_PANIC);
  buflock_op *op = (buflock_op *)token;
  buflock_step step = {.size = sizeof step};
  const char *data;
  uint32_t ids[1];
  int fd;
  CHECK(buflock_op_acquire(lock, "k", 1, 1, 1, &op) == BUFLOCK_PANIC);
  CHECK(buflock_op_extend(lock, "k", 1, token, 1, &op) == BUFLOCK_PANIC);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_PANIC);
  CHECK(buflock_op_await(lock, "k", 1, 1, &op) == BUFLOCK_PANIC);
  CHECK(buflock_op_inspect(lock, "k", 1, &op) == BUFLOCK_PANIC && buflock_op_break(lock, "k", 1, &op) == BUFLOCK_PANIC);
  CHECK(buflock_op_next(op, &step) == BUFLOCK_PANIC && buflock_op_run(op, 1) == BUFLOCK_PANIC);
  CHECK(buflock_op_connected(op, 1) == BUFLOCK_PANIC && buflock_op_feed(op, "x", 1) == BUFLOCK_PANIC);
  CHECK(buflock_op_fail(op, "x") == BUFLOCK_PANIC && buflock_op_argument(op, 0, &data, &length) == BUFLOCK_PANIC);
  CHECK(buflock_op_reply(op, 0, 0, "x", 1) == BUFLOCK_PANIC && buflock_op_cancel(op) == BUFLOCK_PANIC);
  CHECK(buflock_op_finish(op, token, NULL) == BUFLOCK_PANIC && buflock_op_error(op) != NULL);
  CHECK(buflock_op_holder(op, json, sizeof json) == BUFLOCK_PANIC);
  CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_PANIC && buflock_bell_listen(lock, "/x") == BUFLOCK_PANIC);
  CHECK(buflock_bell_read(lock, ids, 1, &length) == BUFLOCK_PANIC);
  buflock_bell_quit(lock);
  buflock_op_free(NULL);
  buflock_free(NULL);
  buflock_config_free(NULL);
  CHECK(buflock_last_error() != NULL && errno == 4711);
  puts("ok panic");
  return 0;
}
