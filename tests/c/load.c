/* The library as a plugin: loaded, not linked, used and closed. Loading does nothing that the program would notice, and
 * closing leaves it mapped, since its code may still run: its bell's thread does. Run with the library's path. */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>

const char *buflock_last_error(void) { return ""; } /* for check.h */

/* What a program has that a library should not change. */
struct host {
  int threads;
  char fds[256];
  void (*handlers[32])(int);
  sigset_t blocked;
};

static void look(struct host *host) {
  memset(host, 0, sizeof *host);
  host->threads = threads();
  for (int fd = 0; fd < 256; fd++) host->fds[fd] = fcntl(fd, F_GETFD) >= 0;
  for (int number = 1; number < 32; number++) {
    struct sigaction now = {.sa_handler = SIG_DFL};
    sigaction(number, NULL, &now);
    host->handlers[number] = now.sa_handler;
  }
  pthread_sigmask(SIG_SETMASK, NULL, &host->blocked);
}

static int is_mapped(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  int found = 0;
  CHECK(maps);
  while (fgets(line, sizeof line, maps)) found |= strstr(line, "libbuflock") != NULL;
  fclose(maps);
  return found;
}

static void *find(void *library, const char *name) {
  void *symbol = dlsym(library, name);
  CHECK(symbol);
  return symbol;
}

/* A thread that has used the library, and ends after it was closed. */
static void *uses_and_closes(void *library) {
  int (*new)(const char *, const buflock_config *, buflock_t **);
  const char *(*last_error)(void);
  *(void **)&new = find(library, "buflock_new");
  *(void **)&last_error = find(library, "buflock_last_error");
  CHECK(new("nonsense", NULL, NULL) == BUFLOCK_ARGUMENT && last_error()[0]);
  CHECK(!dlclose(library));
  return NULL;
}

#define FIND(name) \
  __typeof__(&buflock_##name) name##_; \
  *(void **)&name##_ = find(library, "buflock_" #name)

/* The bell's thread goes on when the library is closed, also by the last who had it open. */
static void closes_under_the_bell(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(library);
  FIND(new);
  FIND(acquire);
  FIND(release);
  FIND(bell_fd);
  FIND(op_acquire);
  FIND(op_next);
  FIND(op_free);
  FIND(free);
  char url[128], token[BUFLOCK_TOKEN_SIZE];
  buflock_t *lock, *other;
  buflock_op *op;
  buflock_step step = {.size = sizeof step};
  int fd;
  snprintf(test_dir, sizeof test_dir, "/dev/shm/buflock-test.XXXXXX");
  CHECK(mkdtemp(test_dir));
  test_process = getpid();
  atexit(remove_test_dir);
  snprintf(url, sizeof url, "shm:t0?dir=%s&size=16k", test_dir);
  CHECK(new_(url, NULL, &lock) == BUFLOCK_OK && new_(url, NULL, &other) == BUFLOCK_OK);
  CHECK(acquire_(other, "k", 1, 60000, 0, token, NULL) == BUFLOCK_OK && bell_fd_(lock, &fd) == BUFLOCK_OK);
  CHECK(op_acquire_(lock, "k", 1, 60000, 60000, &op) == BUFLOCK_OK);
  CHECK(op_next_(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_BELL && threads() == 2);
  CHECK(!dlclose(library) && is_mapped());
  pause_ms(200); /* it looks by itself, some times */
  CHECK(threads() == 2 && is_mapped());
  struct pollfd entry = {fd, POLLIN, 0};
  CHECK(release_(other, "k", 1, token) == BUFLOCK_OK && poll(&entry, 1, 10000) == 1);
  CHECK(op_next_(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_DONE);
  op_free_(op);
  free_(lock);
  free_(other);
  CHECK(threads() == 1 && is_mapped());
}

int main(int count, char **arguments) {
  static struct host before, after;
  CHECK(count == 2 && !is_mapped()); /* or nothing would be proved */
  FILE *said = tmpfile();
  int out = dup(1), err = dup(2);
  CHECK(said && dup2(fileno(said), 1) == 1 && dup2(fileno(said), 2) == 2);
  complaints = err;
  look(&before);
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(library && is_mapped());
  look(&after);
  CHECK(!memcmp(&before, &after, sizeof before));

  void *symbol = find(library, "buflock_version");
  const char *(*version)(void);
  *(void **)&version = symbol;
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, uses_and_closes, library) && !pthread_join(thread, NULL));
  CHECK(is_mapped() && !strcmp(version(), BUFLOCK_VERSION));
  library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(library && find(library, "buflock_version") == symbol && !dlclose(library) && is_mapped());

  closes_under_the_bell(arguments[1]);
  fflush(NULL);
  CHECK(fseek(said, 0, SEEK_END) == 0 && ftell(said) == 0);
  CHECK(dup2(out, 1) == 1);
  puts("ok load");
  return 0;
}
