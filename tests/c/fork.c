/* Handles and tokens on both sides of a fork. */
#include "check.h"

int main(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE] = "", gift[BUFLOCK_TOKEN_SIZE], holder[64], want[64];
  int tokens[2];
  CHECK(!pipe(tokens));
  for (int used_before = 0; used_before < 2; used_before++) {
    if (used_before) CHECK(acquire(lock, "mine", 60000, 0, token) == BUFLOCK_OK);
    if (used_before) CHECK(acquire(lock, "given back for it", 60000, 0, gift) == BUFLOCK_OK);
    pid_t child = fork();
    if (!child) {
      char own[BUFLOCK_TOKEN_SIZE] = "";
      CHECK(acquire(lock, "its", 60000, 0, own) == BUFLOCK_OK);
      snprintf(want, sizeof want, "pid %d", (int)getpid());
      CHECK(buflock_inspect(lock, "its", 3, NULL, holder, sizeof holder) == BUFLOCK_BUSY && !strcmp(holder, want));
      if (used_before) {
        CHECK(acquire(lock, "mine", 1000, 0, own) == BUFLOCK_BUSY);
        snprintf(want, sizeof want, "pid %d", (int)getppid());
        CHECK(buflock_inspect(lock, "mine", 4, NULL, holder, sizeof holder) == BUFLOCK_BUSY && !strcmp(holder, want));
        CHECK(buflock_extend(lock, "mine", 4, token, 60000) == BUFLOCK_OK); /* a token belongs to whoever has it */
      }
      CHECK(acquire(lock, "handed on", 60000, 0, own) == BUFLOCK_OK);
      CHECK(write(tokens[1], own, sizeof own) == (ssize_t)sizeof own);
      if (used_before) CHECK(release(lock, "given back for it", gift) == BUFLOCK_OK);
      buflock_free(lock);
      exit(0); /* with handlers and destructors: nothing is released */
    }
    CHECK(reap(child) == 0);
    CHECK(buflock_await(lock, "its", 3, 0) == BUFLOCK_BUSY);
    CHECK(buflock_break(lock, "its", 3) == BUFLOCK_OK);
    char its[BUFLOCK_TOKEN_SIZE];
    CHECK(read(tokens[0], its, sizeof its) == (ssize_t)sizeof its && strcmp(its, token));
    CHECK(buflock_extend(lock, "handed on", 9, its, 60000) == BUFLOCK_OK && release(lock, "handed on", its) == BUFLOCK_OK);
    if (used_before) CHECK(release(lock, "given back for it", gift) == BUFLOCK_EXPIRED);
    if (used_before) {
      snprintf(want, sizeof want, "pid %d", (int)getpid());
      CHECK(buflock_inspect(lock, "mine", 4, NULL, holder, sizeof holder) == BUFLOCK_BUSY && !strcmp(holder, want));
      CHECK(release(lock, "mine", token) == BUFLOCK_OK);
    }
  }
  buflock_free(lock);
  puts("ok fork");
  return 0;
}
