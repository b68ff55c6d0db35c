/* Waiting: for a release, for a dead holder's lease, through a storm of signals. */
#include "check.h"
#include <sys/mman.h>
#include <sys/time.h>

/* How late a waiter may be on a loaded machine; a wake-up that was lost costs it a slice of 50 ms, many of them more. */
static const double LATE = 2.0;

static double *shared; /* seconds at which something happened in another process */

static void gets_it_when_it_is_released(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  pid_t child = fork();
  if (!child) {
    char mine[BUFLOCK_TOKEN_SIZE];
    CHECK(acquire(lock, "k", 1000, 30000, mine) == BUFLOCK_OK);
    *shared = seconds();
    CHECK(release(lock, "k", mine) == BUFLOCK_OK);
    buflock_free(lock);
    _exit(0);
  }
  pause_ms(300);
  double begin = seconds();
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  CHECK(reap(child) == 0 && *shared >= begin && *shared < begin + LATE);
  buflock_free(lock);
}

static void is_told_of_a_release(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  pid_t child = fork();
  if (!child) {
    CHECK(buflock_await(lock, "k", 1, 30000) == BUFLOCK_OK);
    *shared = seconds();
    buflock_free(lock);
    _exit(0);
  }
  pause_ms(300);
  double begin = seconds();
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  CHECK(reap(child) == 0 && *shared >= begin && *shared < begin + LATE);
  CHECK(acquire(lock, "k", 1000, 0, token) == BUFLOCK_OK); /* who awaits does not take it */
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  buflock_free(lock);
}

static void takes_over_from_the_dead(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  pid_t child = fork();
  if (!child) {
    CHECK(acquire(lock, "k", 500, 0, token) == BUFLOCK_OK);
    *shared = seconds();
    kill(getpid(), SIGKILL);
  }
  CHECK(reap(child) == 128 + SIGKILL);
  double lease_ends = *shared + 0.5;
  CHECK(acquire(lock, "k", 1000, 30000, token) == BUFLOCK_OK);
  CHECK(seconds() >= lease_ends - 0.01 && seconds() < lease_ends + LATE); /* it was stamped a moment after its lease began */
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  buflock_free(lock);
}

static volatile sig_atomic_t alarms;
static void count_alarm(int number) { alarms += number == SIGALRM; }

static void set_storm(long us) {
  struct itimerval every = {{0, us}, {0, us}};
  CHECK(!setitimer(ITIMER_REAL, &every, NULL));
}

static void lasts_as_long_as_it_should_through_signals(void) {
  buflock_t *lock = table_lock(0, ""), *mine = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], none[BUFLOCK_TOKEN_SIZE];
  struct sigaction handler = {.sa_handler = count_alarm}; /* without SA_RESTART */
  CHECK(!sigaction(SIGALRM, &handler, NULL));
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  set_storm(1000);
  double begin = seconds();
  CHECK(acquire(mine, "k", 1000, 1000, none) == BUFLOCK_BUSY);
  double waited = seconds() - begin;
  CHECK(waited >= 1.0 && waited < 1.0 + LATE && alarms > 50);
  begin = seconds();
  CHECK(buflock_await(mine, "k", 1, 300) == BUFLOCK_BUSY);
  CHECK(seconds() - begin >= 0.3);
  for (int i = 0; i < 300; i++) {
    CHECK(acquire(mine, "pair", 60000, 100, none) == BUFLOCK_OK && release(mine, "pair", none) == BUFLOCK_OK);
    pause_ms(1);
  }
  set_storm(0);
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  buflock_free(lock);
  buflock_free(mine);
}

int main(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  gets_it_when_it_is_released();
  is_told_of_a_release();
  takes_over_from_the_dead();
  lasts_as_long_as_it_should_through_signals();
  puts("ok wait");
  return 0;
}
