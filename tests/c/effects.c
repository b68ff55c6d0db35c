/* What a program does not notice of the library's calls: no thread, no fd without close-on-exec, no output, no handler,
 * errno kept. */
#include "check.h"
#include <dirent.h>

static int count(const char *folder) {
  DIR *dir = opendir(folder);
  CHECK(dir);
  int entries = 0;
  while (readdir(dir)) entries++;
  closedir(dir);
  return entries;
}

/* Before us, by whoever runs this. */
static char was_open[256];
static void (*handlers[32])(int);

static void remember(void) {
  for (int fd = 0; fd < 256; fd++) was_open[fd] = fcntl(fd, F_GETFD) >= 0;
  for (int number = 1; number < 32; number++) {
    struct sigaction before;
    if (!sigaction(number, NULL, &before)) handlers[number] = before.sa_handler;
  }
}

static void all_fds_close_on_exec(void) {
  for (int fd = 3; fd < 256; fd++) {
    int flags = fcntl(fd, F_GETFD);
    CHECK(was_open[fd] || flags < 0 || flags & FD_CLOEXEC);
  }
}

static void handlers_are_as_before(void) {
  for (int number = 1; number < 32; number++) {
    struct sigaction now;
    CHECK(sigaction(number, NULL, &now) || now.sa_handler == handlers[number]);
  }
}

static const int MARK = 4711; /* no errno */

static int kept(void) {
  int same = errno == MARK;
  errno = MARK;
  return same;
}

static void errno_is_kept(void) {
  char token[BUFLOCK_TOKEN_SIZE], json[4096];
  buflock_t *lock = table_lock(0, ""), *none = NULL;
  errno = MARK;
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK && kept());
  CHECK(acquire(lock, "k", 60000, 0, json) == BUFLOCK_BUSY && kept());
  CHECK(acquire(lock, "k", 60000, 60, json) == BUFLOCK_BUSY && kept());
  CHECK(buflock_await(lock, "k", 1, 60) == BUFLOCK_BUSY && kept());
  CHECK(buflock_extend(lock, "k", 1, token, 60000) == BUFLOCK_OK && kept());
  CHECK(buflock_inspect(lock, "k", 1, NULL, json, 10) == BUFLOCK_BUSY && kept());
  CHECK(buflock_stats(lock, json, sizeof json, NULL) == BUFLOCK_OK && kept());
  CHECK(release(lock, "k", token) == BUFLOCK_OK && release(lock, "k", token) == BUFLOCK_EXPIRED && kept());
  CHECK(buflock_drop(lock, "k", 1, token) == BUFLOCK_EXPIRED && buflock_break(lock, "k", 1) == BUFLOCK_EXPIRED && kept());
  CHECK(buflock_new("shm:x?dir=/nowhere/at/all", NULL, &none) == BUFLOCK_OK && kept());
  CHECK(acquire(none, "k", 1, 0, token) == BUFLOCK_SEGMENT && kept() && says("/nowhere/at/all"));
  buflock_config *config = buflock_config_new();
  CHECK(buflock_config_set(config, "x", "y") == BUFLOCK_CONFIG && kept());
  buflock_config_free(config);
  buflock_free(none);
  buflock_free(lock);
  CHECK(kept() && buflock_last_error()[0] && buflock_status_name(0)[0] && buflock_version()[0] && kept());
}

static void errno_is_kept_by_ops(void) {
  char token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE], path[128];
  buflock_t *lock = table_lock(0, ""), *listening = table_lock(0, ""), *other = table_lock(0, "");
  buflock_step step = {.size = sizeof step};
  buflock_op *op = NULL;
  uint32_t ids[1];
  size_t count;
  int fd;
  errno = MARK;
  CHECK(acquire(other, "k", 60000, 0, token) == BUFLOCK_OK && kept());
  CHECK(buflock_op_acquire(lock, "k", 1, 1000, 60000, &op) == BUFLOCK_OK && kept());
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_SLEEP && kept());
  CHECK(buflock_op_run(op, 60) == BUFLOCK_INTERRUPTED && kept());
  CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_OK && kept());
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_BELL && kept());
  CHECK(buflock_bell_read(lock, ids, 1, &count) == BUFLOCK_OK && kept()); /* in vain: EAGAIN inside */
  buflock_bell_quit(lock);
  CHECK(kept() && buflock_bell_read(lock, ids, 1, &count) == BUFLOCK_OK && kept());
  CHECK(release(other, "k", token) == BUFLOCK_OK && buflock_op_run(op, 60000) == BUFLOCK_OK && kept());
  CHECK(buflock_op_finish(op, mine, NULL) == BUFLOCK_OK && buflock_op_cancel(op) == BUFLOCK_OK && kept());
  CHECK(buflock_op_feed(op, "x", 1) == BUFLOCK_ARGUMENT && buflock_op_error(op)[0] && kept());
  buflock_op_free(op);
  CHECK(kept() && buflock_bell_listen(listening, "/nowhere/at/all") == BUFLOCK_SEGMENT && kept());
  snprintf(path, sizeof path, "%s/t7", test_dir);
  errno = MARK;
  CHECK(buflock_bell_listen(listening, path) == BUFLOCK_OK && kept());
  buflock_free(listening);
  buflock_free(lock);
  CHECK(kept());
  buflock_free(other);
}

int main(void) {
  remember();
  int threads = count("/proc/self/task"), out = dup(1), err = dup(2);
  fcntl(out, F_SETFD, FD_CLOEXEC);
  fcntl(err, F_SETFD, FD_CLOEXEC);
  complaints = err;
  FILE *said = tmpfile();
  CHECK(said && fcntl(fileno(said), F_SETFD, FD_CLOEXEC) == 0);
  dup2(fileno(said), 1);
  dup2(fileno(said), 2);
  int fds = count("/proc/self/fd");
  errno_is_kept();
  errno_is_kept_by_ops();
  CHECK(count("/proc/self/fd") == fds && count("/proc/self/task") == threads); /* all is over when handles are freed */
  buflock_t *lock = table_lock(1, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 1000, 0, token) == BUFLOCK_OK);
  all_fds_close_on_exec();
  CHECK(count("/proc/self/task") == threads);
  handlers_are_as_before();
  buflock_free(lock);
  fflush(NULL);
  CHECK(fseek(said, 0, SEEK_END) == 0 && ftell(said) == 0);
  dup2(out, 1);
  dup2(err, 2);
  puts("ok effects");
  return 0;
}
