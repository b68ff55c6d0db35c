/* What a program does not notice of the library: no thread, no fd without close-on-exec, no output, no handler, errno
 * kept; and it stays mapped when it is closed. Run with the library's path: it is loaded here, not linked. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include "check.h"

static int count(const char *folder) {
  DIR *dir = opendir(folder);
  CHECK(dir);
  int entries = 0;
  while (readdir(dir)) entries++;
  closedir(dir);
  return entries;
}

static int is_mapped(const char *name) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  int found = 0;
  CHECK(maps);
  while (fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
  fclose(maps);
  return found;
}

static char was_open[256]; /* before us, by whoever runs this */

static void remember_open_fds(void) {
  for (int fd = 0; fd < 256; fd++) was_open[fd] = fcntl(fd, F_GETFD) >= 0;
}

static void all_fds_close_on_exec(void) {
  for (int fd = 3; fd < 256; fd++) {
    int flags = fcntl(fd, F_GETFD);
    CHECK(was_open[fd] || flags < 0 || flags & FD_CLOEXEC);
  }
}

static void handlers_are_default(void) {
  for (int number = 1; number < 32; number++) {
    struct sigaction now;
    CHECK(sigaction(number, NULL, &now) || now.sa_handler == SIG_DFL);
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

/* The library once more, as a host that loads and closes it does. */
static void closing_leaves_it_mapped(const char *library) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  CHECK(handle && !dlclose(handle) && is_mapped("libbuflock"));
}

int main(int count_of_arguments, char **arguments) {
  CHECK(count_of_arguments == 2);
  remember_open_fds();
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
  CHECK(count("/proc/self/fd") == fds); /* all closed when handles are freed */
  buflock_t *lock = table_lock(1, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 1000, 0, token) == BUFLOCK_OK);
  all_fds_close_on_exec();
  CHECK(count("/proc/self/task") == threads);
  handlers_are_default();
  buflock_free(lock);
  fflush(NULL);
  CHECK(fseek(said, 0, SEEK_END) == 0 && ftell(said) == 0);
  dup2(out, 1);
  dup2(err, 2);
  closing_leaves_it_mapped(arguments[1]);
  puts("ok effects");
  return 0;
}
