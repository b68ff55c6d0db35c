/* The library as a plugin: loaded, not linked, used and closed. Loading does nothing that the program would notice, and
 * closing leaves it mapped, since its code may still run. Run with the library's path. */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
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
  DIR *dir = opendir("/proc/self/task");
  CHECK(dir);
  while (readdir(dir)) host->threads++;
  closedir(dir);
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

  fflush(NULL);
  CHECK(fseek(said, 0, SEEK_END) == 0 && ftell(said) == 0);
  CHECK(dup2(out, 1) == 1);
  puts("ok load");
  return 0;
}
