/* A bug inside never takes the host along. Run with the library that has test hooks, and BUFLOCK_TEST=panic: then each
 * entry panics. In a build without unwinding this program would be aborted. */
#include "check.h"

int main(void) {
  char token[BUFLOCK_TOKEN_SIZE] = "", json[64];
  buflock_t *lock = (buflock_t *)token; /* never looked at: the panic comes first */
  buflock_config *config = (buflock_config *)token;
  size_t length;
  complaints = 1;
  CHECK(freopen("/dev/null", "w", stderr)); /* each panic says where it happened */
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
  buflock_free(NULL);
  buflock_config_free(NULL);
  CHECK(buflock_last_error() != NULL);
  puts("ok panic");
  return 0;
}
