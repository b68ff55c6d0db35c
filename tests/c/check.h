/* What the C tests share. A failed check says where, and ends the program. */
#ifndef CHECK_H
#define CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "buflock.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : failed(__FILE__, __LINE__, #condition))

static int complaints = 2; /* the fd */
static char test_dir[64];
static pid_t test_process;

static inline void remove_test_dir(void) {
  if (getpid() != test_process) return;
  char path[256];
  for (int i = 0; i < 8; i++) {
    snprintf(path, sizeof path, "%s/t%d", test_dir, i);
    unlink(path);
  }
  rmdir(test_dir);
}

static inline void failed(const char *file, int line, const char *condition) {
  dprintf(complaints, "%s:%d: not so: %s (last error: %s)\n", file, line, condition, buflock_last_error());
  remove_test_dir();
  _exit(1);
}

/* Seconds of the kernel's clock, asked by a system call of our own: what is put before the C library to turn its
 * clocks does not reach it. */
static inline double seconds(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void pause_ms(long ms) {
  struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&rest, &rest) && errno == EINTR) {
  }
}

/* A lock service in a table of this test's own, number `table` of 8, with more options (may be ""). */
static inline buflock_t *table_lock(int table, const char *options) {
  if (!test_dir[0]) {
    snprintf(test_dir, sizeof test_dir, "/dev/shm/buflock-test.XXXXXX");
    CHECK(mkdtemp(test_dir));
    test_process = getpid();
    atexit(remove_test_dir);
  }
  char url[256];
  const char *size = strstr(options, "size=") ? "" : "&size=16k";
  snprintf(url, sizeof url, "shm:t%d?dir=%s%s%s", table, test_dir, size, options);
  buflock_t *lock = NULL;
  CHECK(buflock_new(url, NULL, &lock) == BUFLOCK_OK);
  return lock;
}

static inline int acquire(buflock_t *lock, const char *key, unsigned ttl_ms, unsigned wait_ms, char *token) {
  return buflock_acquire(lock, key, strlen(key), ttl_ms, wait_ms, token, NULL);
}

static inline int release(buflock_t *lock, const char *key, const char *token) {
  return buflock_release(lock, key, strlen(key), token);
}

static inline int says(const char *words) { return strstr(buflock_last_error(), words) != NULL; }

/* How many threads this process has. */
static inline int threads(void) {
  DIR *dir = opendir("/proc/self/task");
  CHECK(dir);
  int count = -2;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

/* The exit status of a child. */
static inline int reap(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
