/* Hosts in states that a library should survive: without standard fds, with threads that are cancelled, with timers. */
#include "check.h"
#include <pthread.h>

/* What a daemon prints after it has closed its standard fds goes nowhere, least of all into the table. */
static void standard_fds_are_closed(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], path[128];
  int held[2], done[2], fd;
  CHECK(!pipe(held) && !pipe(done));
  pid_t child = fork();
  if (!child) {
    complaints = fcntl(2, F_DUPFD, 100);
    for (fd = 0; fd < 3; fd++) close(fd);
    CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
    buflock_t *listening = table_lock(0, "");
    snprintf(path, sizeof path, "%s/t7", test_dir);
    CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_OK && fd > 2);
    CHECK(buflock_bell_listen(listening, path) == BUFLOCK_OK);
    for (fd = 0; fd < 3; fd++)
      for (int i = 0; i < 1000; i++) CHECK(write(fd, "a line of a program's output\n", 29) < 0 && errno == EBADF);
    CHECK(write(held[1], "", 1) == 1 && read(done[0], token + 40, 1) == 1);
    CHECK(release(lock, "k", token) == BUFLOCK_OK);
    buflock_free(listening);
    buflock_free(lock);
    _exit(0);
  }
  close(held[1]), close(done[0]);
  CHECK(read(held[0], token, 1) == 1);
  CHECK(acquire(lock, "k", 1000, 0, token) == BUFLOCK_BUSY); /* attached only now */
  CHECK(write(done[1], "", 1) == 1 && reap(child) == 0);
  buflock_free(lock);
}

static int answers[6];
static char token_of_cancelled[BUFLOCK_TOKEN_SIZE];

static void *is_cancelled(void *lock) {
  char json[4096];
  int fd;
  pthread_cancel(pthread_self()); /* from now on at the first cancellation point */
  answers[0] = acquire(lock, "k", 60000, 0, token_of_cancelled);
  answers[1] = acquire(lock, "k", 60000, 60, json);
  answers[2] = buflock_await(lock, "k", 1, 60);
  answers[3] = buflock_stats(lock, json, sizeof json, NULL);
  answers[4] = buflock_bell_fd(lock, &fd);
  buflock_free(lock);
  answers[5] = 4711;
  return NULL; /* and not by its cancellation, which sanitizers do not survive */
}

/* The same where random numbers are asked for and sockets are used: a server that is not there will do. */
static void *is_cancelled_elsewhere(void *unused) {
  const char *urls[] = {"off:", "redis://127.0.0.1:1", "redis:"};
  char token[BUFLOCK_TOKEN_SIZE];
  (void)unused;
  pthread_cancel(pthread_self());
  for (int i = 0; i < 3; i++) {
    buflock_t *lock = NULL;
    buflock_op *op = NULL;
    buflock_step step = {.size = sizeof step};
    answers[i] = buflock_new(urls[i], NULL, &lock) == BUFLOCK_OK && acquire(lock, "k", 1000, 0, token) != BUFLOCK_PANIC &&
                 buflock_op_acquire(lock, "k", 1, 1000, 0, &op) == BUFLOCK_OK && buflock_op_next(op, &step) == BUFLOCK_OK &&
                 (i == 2 || buflock_op_run(op, 50) == BUFLOCK_OK) && buflock_op_cancel(op) == BUFLOCK_OK;
    buflock_op_free(op);
    buflock_free(lock);
  }
  answers[3] = 4711;
  return NULL;
}

/* No call is a cancellation point: unwinding through the library would end the process. */
static void threads_are_cancelled(void) {
  pid_t child = fork();
  if (!child) {
    buflock_t *lock = table_lock(1, ""), *other = table_lock(1, "");
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, is_cancelled, lock) && !pthread_join(thread, NULL));
    CHECK(answers[0] == BUFLOCK_OK && answers[1] == BUFLOCK_BUSY);
    CHECK(answers[2] == BUFLOCK_BUSY && answers[3] == BUFLOCK_OK && answers[4] == BUFLOCK_OK && answers[5] == 4711);
    CHECK(release(other, "k", token_of_cancelled) == BUFLOCK_OK);
    buflock_free(other);
    CHECK(!pthread_create(&thread, NULL, is_cancelled_elsewhere, NULL) && !pthread_join(thread, NULL));
    CHECK(answers[0] == 1 && answers[1] == 1 && answers[2] == 1 && answers[3] == 4711);
    _exit(0);
  }
  CHECK(reap(child) == 0);
}

static int interruptions = -1; /* not counted */

/* As on tmpfs of kernels that undo an interrupted call: under a timer one that takes long never succeeds. */
int posix_fallocate(int fd, off_t from, off_t length) {
  if (interruptions >= 0 && length > 1 << 20) {
    CHECK(++interruptions < 1000);
    return EINTR;
  }
  return syscall(SYS_fallocate, fd, 0, from, length) ? errno : 0;
}

static void timers_run_while_a_table_is_made(void) {
  char token[BUFLOCK_TOKEN_SIZE];
  buflock_t *lock = table_lock(2, "&size=8M");
  interruptions = 0;
  CHECK(acquire(lock, "k", 1000, 0, token) == BUFLOCK_OK && release(lock, "k", token) == BUFLOCK_OK);
  interruptions = -1;
  buflock_free(lock);
}

int main(void) {
  standard_fds_are_closed();
  threads_are_cancelled();
  timers_run_while_a_table_is_made();
  puts("ok host");
  return 0;
}
