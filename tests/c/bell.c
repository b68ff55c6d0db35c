/* The bell's thread, fd and socket: who has them, and what is left of them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "check.h"

static int readable(int fd, int ms) {
  struct pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, ms) == 1;
}

static buflock_op *waiting_op(buflock_t *lock, const char *key, uint32_t *id) {
  buflock_op *op;
  buflock_step step = {.size = sizeof step};
  CHECK(buflock_op_acquire(lock, key, strlen(key), 60000, 60000, &op) == BUFLOCK_OK);
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_BELL && step.id > 0);
  *id = step.id;
  return op;
}

static void ends(buflock_op *op, char *token) {
  buflock_step step = {.size = sizeof step};
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_DONE);
  CHECK(buflock_op_finish(op, token, NULL) == BUFLOCK_OK);
  buflock_op_free(op);
}

/* Every signal but those that can't be blocked is, in every thread but the first. */
static void signals_are_blocked(void) {
  char path[300], line[256];
  int seen = 0;
  DIR *dir = opendir("/proc/self/task");
  CHECK(dir);
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
      if (!strncmp(line, "SigBlk:", 7)) {
        uint64_t blocked = strtoull(line + 7, NULL, 16);
        CHECK((blocked & 0x7fffffff) == (0x7fffffff & ~(1u << (SIGKILL - 1) | 1u << (SIGSTOP - 1))));
        seen++;
      }
    fclose(file);
  }
  closedir(dir);
  CHECK(seen == 1);
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void thread_comes_and_goes(void) {
  buflock_t *lock = table_lock(0, ""), *other = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE];
  uint32_t id, ids[4];
  size_t count;
  int fd, again;
  CHECK(threads() == 1 && acquire(other, "k", 60000, 0, token) == BUFLOCK_OK);
  CHECK(buflock_bell_read(lock, ids, 4, &count) == BUFLOCK_OK && count == 0 && threads() == 1);
  CHECK(buflock_bell_fd(lock, &fd) == BUFLOCK_OK && buflock_bell_fd(lock, &again) == BUFLOCK_OK && fd == again);
  CHECK(threads() == 2 && fcntl(fd, F_GETFD) & FD_CLOEXEC);
  signals_are_blocked();
  CHECK(buflock_bell_listen(lock, "/nowhere") == BUFLOCK_ARGUMENT && says("another form"));

  buflock_op *op = waiting_op(lock, "k", &id), *second = waiting_op(lock, "k", &ids[3]);
  CHECK(id != ids[3]);
  double before = cpu_seconds();
  CHECK(!readable(fd, 1000));
  CHECK(cpu_seconds() - before < 0.1); /* 20 looks; a loop that spins would use all of the second */
  CHECK(release(other, "k", token) == BUFLOCK_OK && readable(fd, 10000));
  CHECK(buflock_bell_read(lock, ids, 1, &count) == BUFLOCK_OK && count == 1 && readable(fd, 0)); /* there is more */
  CHECK(buflock_bell_read(lock, ids, 4, &count) == BUFLOCK_OK && count == 1 && !readable(fd, 0));
  ends(op, mine);
  buflock_op_free(second);
  buflock_bell_quit(lock);
  CHECK(readable(fd, 10000) && buflock_bell_read(lock, ids, 4, &count) == BUFLOCK_OK && count == 1 && ids[0] == 0);
  CHECK(release(lock, "k", mine) == BUFLOCK_OK);
  buflock_free(lock);
  CHECK(threads() == 1 && fcntl(fd, F_GETFD) < 0);
  buflock_free(other);
}

static void child_has_its_own(void) {
  buflock_t *lock = table_lock(0, ""), *other = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE];
  uint32_t id, ids[4];
  size_t count;
  int fd, in_child[2];
  CHECK(acquire(other, "k", 60000, 0, token) == BUFLOCK_OK && buflock_bell_fd(lock, &fd) == BUFLOCK_OK && !pipe(in_child));
  buflock_op *op = waiting_op(lock, "k", &id);
  pause_ms(100); /* the thread is at rest: sanitizers' allocators, unlike the C library's, do not survive a fork */
  pid_t child = fork();
  if (!child) {
    int own;
    CHECK(threads() == 1 && buflock_bell_read(lock, ids, 4, &count) == BUFLOCK_OK && count == 0);
    CHECK(buflock_bell_fd(lock, &own) == BUFLOCK_OK && threads() == 2);
    buflock_op *its = waiting_op(lock, "k", ids);
    CHECK(write(in_child[1], "", 1) == 1 && readable(own, 10000));
    buflock_op_free(its);
    buflock_op_free(op);
    buflock_free(lock);
    CHECK(threads() == 1);
    _exit(0);
  }
  CHECK(read(in_child[0], ids, 1) == 1 && release(other, "k", token) == BUFLOCK_OK);
  CHECK(readable(fd, 10000) && buflock_bell_read(lock, ids, 4, &count) == BUFLOCK_OK && count == 1 && ids[0] == id);
  CHECK(reap(child) == 0);
  int answer; /* the child may have had it for a moment */
  CHECK((answer = buflock_op_run(op, 10000)) == BUFLOCK_OK && buflock_op_finish(op, mine, NULL) == BUFLOCK_OK);
  CHECK(release(lock, "k", mine) == BUFLOCK_OK);
  buflock_op_free(op);
  buflock_free(lock);
  buflock_free(other);
}

static int connect_to(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  CHECK(fd >= 0);
  if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
    close(fd);
    return -1;
  }
  return fd;
}

static void writes_to_a_socket(void) {
  buflock_t *lock = table_lock(0, ""), *other = table_lock(0, "");
  char path[108], token[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE], longest[200];
  struct stat status;
  uint32_t id, told;
  size_t count;
  int fd;
  snprintf(path, sizeof path, "%s/t7", test_dir);
  memset(longest, 'x', sizeof longest);
  longest[0] = '/', longest[108] = 0;
  CHECK(buflock_bell_listen(lock, longest) == BUFLOCK_ARGUMENT && says("path has 108 bytes"));
  CHECK(buflock_bell_listen(lock, "") == BUFLOCK_ARGUMENT);
  CHECK(buflock_bell_listen(lock, "/nowhere/at/all") == BUFLOCK_SEGMENT && says("No such file"));
  for (int round = 0; round < 2; round++) { /* once more after its reader has left */
    CHECK(buflock_bell_listen(lock, path) == BUFLOCK_OK && !stat(path, &status) && (status.st_mode & 0777) == 0600);
    CHECK(buflock_bell_listen(lock, path) == BUFLOCK_ARGUMENT && buflock_bell_fd(lock, &fd) == BUFLOCK_ARGUMENT);
    CHECK(buflock_bell_read(lock, &told, 1, &count) == BUFLOCK_ARGUMENT && says("to a socket"));
    pid_t child = fork();
    if (!child) { /* another process is not let in */
      fd = connect_to(path);
      char byte;
      _exit(fd >= 0 && read(fd, &byte, 1) == 0 ? 0 : 1);
    }
    CHECK(reap(child) == 0 && (fd = connect_to(path)) >= 0);
    for (int tries = 0; !access(path, F_OK) && tries < 500; tries++) pause_ms(10);
    CHECK(access(path, F_OK)); /* its name is gone once there is a connection */
    CHECK(acquire(other, "k", 60000, 0, token) == BUFLOCK_OK);
    buflock_op *op = waiting_op(lock, "k", &id);
    CHECK(release(other, "k", token) == BUFLOCK_OK && readable(fd, 10000) && read(fd, &told, 4) == 4 && told == id);
    ends(op, mine);
    CHECK(release(lock, "k", mine) == BUFLOCK_OK);
    buflock_bell_quit(lock);
    CHECK(readable(fd, 10000) && read(fd, &told, 4) == 4 && told == 0);
    close(fd);
    for (int tries = 0; threads() > 1 && tries < 500; tries++) { /* it learns of it when it writes the next time */
      buflock_bell_quit(lock);
      pause_ms(10);
    }
    CHECK(threads() == 1);
    buflock_step step = {.size = sizeof step};
    CHECK(acquire(other, "k", 60000, 0, token) == BUFLOCK_OK);
    CHECK(buflock_op_acquire(lock, "k", 1, 1000, 1000, &op) == BUFLOCK_OK);
    CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_SLEEP);
    buflock_op_free(op);
    CHECK(release(other, "k", token) == BUFLOCK_OK);
  }
  CHECK(buflock_bell_listen(lock, path) == BUFLOCK_OK); /* nobody ever connects */
  buflock_free(lock);
  CHECK(threads() == 1 && access(path, F_OK));
  buflock_free(other);
}

int main(void) {
  thread_comes_and_goes();
  child_has_its_own();
  writes_to_a_socket();
  puts("ok bell");
  return 0;
}
