/* A wait is as long as it should be while the wall clock jumps by an hour, there and back. Run under libfaketime, which
 * reads the wall clock's offset from the file in FAKETIME_TIMESTAMP_FILE at each call, monotonic clocks left alone. */
#include "check.h"
#include <sys/time.h>

static void set_wall_clock(const char *offset) {
  FILE *file = fopen(getenv("FAKETIME_TIMESTAMP_FILE"), "w");
  CHECK(file && fputs(offset, file) >= 0 && !fclose(file));
}

static double wall(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec;
}

/* A wait of 1.5 s, for the lock or only for its end, during which the clock jumps. */
static double wait_through(buflock_t *lock, int only_await, const char *before, const char *offset) {
  char none[BUFLOCK_TOKEN_SIZE];
  set_wall_clock(before);
  double jumped_from = wall();
  pid_t child = fork();
  if (!child) {
    pause_ms(400);
    set_wall_clock(offset);
    _exit(0);
  }
  double begin = seconds();
  int answer = only_await ? buflock_await(lock, "k", 1, 1500) : acquire(lock, "k", 1000, 1500, none);
  double waited = seconds() - begin;
  CHECK(answer == BUFLOCK_BUSY && reap(child) == 0);
  double jump = wall() - jumped_from;
  CHECK(jump > 3000 || jump < -3000); /* or the test would prove nothing */
  return waited;
}

int main(void) {
  CHECK(getenv("FAKETIME_TIMESTAMP_FILE"));
  alarm(60); /* a wait on the wall clock, turned back, would last an hour */
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 600000, 0, token) == BUFLOCK_OK);
  const char *jumps[][2] = {{"+0", "+3600"}, {"+3600", "+0"}};
  for (int i = 0; i < 4; i++) {
    double waited = wait_through(lock, i / 2, jumps[i % 2][0], jumps[i % 2][1]);
    CHECK(waited >= 1.5 && waited < 3.5); /* 2 s for a loaded machine; a jump would make it 0.4 s or an hour */
  }
  buflock_free(lock);
  puts("ok clock");
  return 0;
}
