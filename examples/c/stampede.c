/* stampede.c - eight processes miss the same cache entry at the same moment.
 *
 *     stampede [URL]
 *
 * First each builds the page for itself. Then they share a lock: one builds, the others wait and take what it built.
 * Then the builder is killed in the middle, and in the end one is stopped until its lease is over, and comes back.
 * Without a URL the lock table is a file in a directory of its own, which is removed at the end.
 *
 * What a program of yours would need is in the part "A page cache with a lock"; the rest stages and prints it.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS; with prctl all here that is not POSIX */

#include <buflock.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WORKERS = 8,
    STEPS = 4,          /* building a page is four steps of 50 ms */
    STEP_MS = 50,
    LONG_LEASE = 5000,  /* in ms, where nobody is to lose it */
    SHORT_LEASE = 600,
    PATIENCE = 6000,    /* how long a worker waits for its page, in ms */
    LIMIT = 9,          /* how long all of it may take, in seconds */
    PAGE = 64           /* bytes of a page */
};

enum fate { NONE, KILLED, STOPPED };

/* What a worker has to tell in the end. */
struct report {
    int builds, lost, from;      /* builds begun; leases lost while building; whose page it has, 0 none */
    double began, done, built;   /* when, in ms; how long its last build took */
    uint64_t fence, refused_by;  /* of its last build; the newer one that its publishing met */
    int released;                /* what releasing that lock said */
    char page[PAGE];
    char error[320];
};

/* Shared by all processes: the cache, and what the stage needs. Workers are numbered from 1. */
static struct {
    _Atomic uint64_t entry;
    char pages[WORKERS + 1][PAGE];
    atomic_int published;

    int fatal_step;              /* in which step of building the first to get there meets its fate; 0 none */
    atomic_int ready, victim, go_on;
    struct report reports[WORKERS + 1];
} *shared;

static struct buflock_t *lock;
static char key[64];
static uint32_t lease;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void sleep_ms(double ms)
{
    struct timespec time = { (time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000 };
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {
    }
}

/* ---- A page cache with a lock ---- */

/* The cache entry is one word: the newest fence it has seen, and whose page it shows (0: none yet). So whether a fence
 * is too old is judged in the same step as the page is written. In a database this would be UPDATE ... WHERE fence <= ?
 * `page` 0 only raises the fence. False: a newer holder has been here. */
static bool cache_put(uint64_t fence, int page)
{
    uint64_t old = atomic_load(&shared->entry), new;
    do {
        if (fence < old >> 8)
            return false;
        new = fence << 8 | (page != 0 ? (uint64_t)page : (old & 255));
    } while (!atomic_compare_exchange_weak(&shared->entry, &old, new));
    return true;
}

/* Whose page the cache has; 0: a miss. */
static int cache_get(void)
{
    return (int)(atomic_load(&shared->entry) & 255);
}

static void meet_fate(int me);

/* Builds a page. A builder that lives keeps its lease by extending it; a dead one can't. False: the lease is lost. */
static bool build(int me, const char *token)
{
    struct report *report = &shared->reports[me];
    double began = now();

    report->builds++;
    for (int step = 1; step <= STEPS; step++) {
        if (step == shared->fatal_step)
            meet_fate(me);
        sleep_ms(STEP_MS);
        if (token != NULL && step < STEPS && buflock_extend(lock, key, strlen(key), token, lease) != BUFLOCK_OK) {
            report->lost++;
            return false;
        }
    }
    snprintf(shared->pages[me], PAGE, "page 42 as worker %d built it", me);
    report->built = now() - began;
    return true;
}

/* Holding the lock: looks again, since the page may have come meanwhile, and builds it if it has not.
 * Raising the fence comes first: from then on no older holder can publish behind our back. */
static void build_and_publish(int me, const char *token, uint64_t fence)
{
    struct report *report = &shared->reports[me];

    if (!cache_put(fence, 0) || cache_get() != 0 || !build(me, token))
        return;
    report->fence = fence;
    if (cache_put(fence, me)) {
        atomic_fetch_add(&shared->published, 1);
        report->done = now();
    } else {
        report->refused_by = atomic_load(&shared->entry) >> 8;
    }
}

/* Answers whose page there is; 0: it failed, and the report says why. */
static int fetch(int me)
{
    struct report *report = &shared->reports[me];
    double end = now() + PATIENCE, left;

    while (cache_get() == 0 && (left = end - now()) > 0) {
        char token[BUFLOCK_TOKEN_SIZE];
        struct buflock_info info = { .size = sizeof info };
        int status = buflock_acquire(lock, key, strlen(key), lease, 0, token, &info);

        if (status == BUFLOCK_OK) {
            int builds = report->builds;
            build_and_publish(me, token, info.fence);
            status = buflock_release(lock, key, strlen(key), token);
            if (report->builds > builds)
                report->released = status;
        } else if (status == BUFLOCK_BUSY) {
            /* Another builds: wait until its hold is over, without wanting the lock. Then look again. */
            status = buflock_await(lock, key, strlen(key), (uint32_t)left);
        }
        if (status < 0) {
            snprintf(report->error, sizeof report->error, "%s: %s", buflock_status_name(status), buflock_last_error());
            return 0;
        }
    }
    if (cache_get() == 0)
        snprintf(report->error, sizeof report->error, "no page after %d ms", PATIENCE);
    return cache_get();
}

/* ---- The stage ---- */

static char directory[64]; /* ours, to be removed */
static volatile pid_t workers[WORKERS + 1];
static pid_t stage;
static int failures;

/* The first builder to come here stays until it is killed, or is told to go on. */
static void meet_fate(int me)
{
    int nobody = 0;
    if (atomic_compare_exchange_strong(&shared->victim, &nobody, me))
        while (!atomic_load(&shared->go_on))
            sleep_ms(1);
}

/* Also called by the signal handler: nothing here but what POSIX allows there. */
static void clean_up(void)
{
    if (getpid() != stage)
        return;
    for (int i = 1; i <= WORKERS; i++) {
        if (workers[i] > 0) {
            kill(workers[i], SIGKILL);
            waitpid(workers[i], NULL, 0);
        }
    }
    if (directory[0] != '\0' && chdir(directory) == 0) {
        unlink("demo");
        if (chdir("/") == 0)
            rmdir(directory);
    }
}

static void on_signal(int number)
{
    static const char text[] = "stampede: took too long\n";
    if (number == SIGALRM && write(STDERR_FILENO, text, sizeof text - 1) < 0) {
        /* then without */
    }
    clean_up();
    _exit(number == SIGALRM ? 1 : 128 + number);
}

static const int signals[] = { SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM };

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "stampede: %s: %s\n", what, why);
    exit(1);
}

/* A worker's life. The gate opens when nobody has its other end any more. */
static void work(int me, bool locked, const int gate[2])
{
    struct report *report = &shared->reports[me];
    char byte;

    close(gate[1]);
    atomic_fetch_add(&shared->ready, 1);
    while (read(gate[0], &byte, 1) < 0 && errno == EINTR) {
    }
    report->began = now();
    if (locked) {
        report->from = fetch(me);
    } else if (cache_get() == 0 && build(me, NULL)) {
        cache_put(0, me);
        report->from = me;
    }
    if (report->done <= 0)
        report->done = now();
    if (report->from != 0)
        memcpy(report->page, shared->pages[report->from], PAGE);
    buflock_free(lock);
    _exit(report->error[0] != '\0');
}

/* Starts all workers, and lets them go when the last one is there. Signals have to wait meanwhile: the handler must
 * know every worker, and no worker may run it. */
static void start(bool locked)
{
    int gate[2];
    sigset_t all, before;

    if (pipe(gate) != 0)
        fail("pipe", strerror(errno));
    fflush(stdout);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    for (int i = 1; i <= WORKERS; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t s = 0; s < sizeof signals / sizeof *signals; s++)
                signal(signals[s], SIG_DFL);
            sigprocmask(SIG_SETMASK, &before, NULL);
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* should the stage be killed, nobody stays, not even stopped */
            if (getppid() != stage)
                _exit(1);
            work(i, locked, gate);
        }
        if (child < 0) {
            int error = errno;
            sigprocmask(SIG_SETMASK, &before, NULL);
            fail("fork", strerror(error));
        }
        workers[i] = child;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    while (atomic_load(&shared->ready) < WORKERS)
        sleep_ms(1);
    close(gate[0]);
    close(gate[1]);
}

/* Waits for the victim and does to it what is planned. */
static void strike(enum fate fate)
{
    int victim;

    while ((victim = atomic_load(&shared->victim)) == 0)
        sleep_ms(1);
    kill(workers[victim], fate == KILLED ? SIGKILL : SIGSTOP);
    if (fate == STOPPED) {
        while (atomic_load(&shared->published) == 0) /* by another, when the lease is over */
            sleep_ms(1);
        atomic_store(&shared->go_on, 1);
        kill(workers[victim], SIGCONT);
    }
}

static void expect(bool good, const char *what)
{
    if (good)
        return;
    printf("  FAILED: %s\n", what);
    failures++;
}

static void reap(enum fate fate)
{
    for (int i = 1; i <= WORKERS; i++) {
        struct report *report = &shared->reports[i];
        int status = 0;
        while (waitpid(workers[i], &status, 0) < 0 && errno == EINTR) {
        }
        workers[i] = 0;
        if (fate == KILLED && i == shared->victim)
            continue;
        if (WIFSIGNALED(status))
            snprintf(report->error, sizeof report->error, "killed by signal %d", WTERMSIG(status));
        else if (WEXITSTATUS(status) != 0 && report->error[0] == '\0')
            snprintf(report->error, sizeof report->error, "exit status %d", WEXITSTATUS(status));
    }
}

static void tell(int worker, enum fate fate)
{
    const struct report *report = &shared->reports[worker];
    double took = report->done - report->began;

    printf("  worker %d  ", worker);
    if (report->error[0] != '\0') {
        printf("FAILED: %s\n", report->error);
        failures++;
    } else if (fate == KILLED && worker == shared->victim) {
        printf("killed while it built\n");
    } else if (report->refused_by != 0) {
        printf("back at %5.0f ms  refused: its fence ..%04u is older than ..%04u\n", took,
               (unsigned)(report->fence % 10000), (unsigned)(report->refused_by % 10000));
        printf("%30srelease said %s; took worker %d's page from the cache\n", "", buflock_status_name(report->released),
               report->from);
    } else if (report->from == worker) {
        double waited = took - report->built;
        printf("waited %6.0f ms  built it in %.0f ms\n", waited > 0 ? waited : 0, report->built);
    } else {
        printf("waited %6.0f ms  took worker %d's page from the cache%s\n", took, report->from,
               report->lost ? " (its own lease was lost)" : "");
    }
}

static int by_end(const void *a, const void *b)
{
    double x = shared->reports[*(const int *)a].done, y = shared->reports[*(const int *)b].done;
    return (x > y) - (x < y);
}

/* One round; answers how many builds were begun. */
static int play(const char *title, bool locked, enum fate fate)
{
    int order[WORKERS], builds = 0, same = 0;
    static int round;

    memset(shared, 0, sizeof *shared);
    lease = fate == NONE ? LONG_LEASE : SHORT_LEASE;
    shared->fatal_step = fate == NONE ? 0 : fate == KILLED ? STEPS / 2 : STEPS;
    snprintf(key, sizeof key, "stampede %ld %d: page 42", (long)stage, ++round);

    printf("\n%s\n", title);
    start(locked);
    if (fate != NONE)
        strike(fate);
    reap(fate);

    for (int i = 0; i < WORKERS; i++) {
        order[i] = i + 1;
        builds += shared->reports[i + 1].builds;
    }
    qsort(order, WORKERS, sizeof *order, by_end);
    for (int i = 0; i < WORKERS; i++)
        tell(order[i], fate);
    for (int i = 1; i <= WORKERS; i++) {
        const struct report *report = &shared->reports[i];
        bool dead = fate == KILLED && i == shared->victim;
        same += dead || (report->from != 0 && strcmp(report->page, shared->pages[cache_get()]) == 0);
    }
    printf("  = %d build%s, ", builds, builds == 1 ? "" : "s");
    if (locked)
        printf("%d page%s published\n", (int)shared->published, shared->published == 1 ? "" : "s");
    else
        printf("for one page\n");
    if (locked) {
        expect(shared->published == 1, "exactly one page was to be published");
        expect(same == WORKERS, "all were to have that page");
    }
    return builds;
}

/* What the library has to say about its set-up, once. */
static void print_notices(void)
{
    char json[4096];
    char *list;

    if (buflock_stats(lock, json, sizeof json, NULL) != BUFLOCK_OK || (list = strstr(json, "\"notices\":[")) == NULL)
        return;
    list += strlen("\"notices\":[");
    list[strcspn(list, "]")] = '\0';
    if (list[0] != '\0')
        printf("notice: %s\n", list);
}

static void open_lock(const char *url)
{
    struct buflock_config *config = buflock_config_new();
    int status;

    /* Redis numbers holds only when asked to; in shared memory they always are. */
    status = buflock_config_set(config, "fencing", "on");
    if (status == BUFLOCK_OK)
        status = buflock_new(url, config, &lock);
    buflock_config_free(config);
    snprintf(key, sizeof key, "stampede %ld", (long)stage);
    /* A look, so that what is wrong with the place is one line here and not one from each worker. */
    if (status == BUFLOCK_OK)
        status = buflock_inspect(lock, key, strlen(key), NULL, NULL, 0);
    if (status < 0)
        fail(buflock_status_name(status), buflock_last_error());
}

int main(int argc, char **argv)
{
    char own[128];
    const char *url = argc > 1 ? argv[1] : own;
    int without, with, killed;

    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        bool asked = argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0);
        fprintf(asked ? stdout : stderr,
                "usage: stampede [URL]\n"
                "  Shows what a lock does for a cache: %d processes miss the same page at the same moment.\n"
                "  URL is a buflock URL, such as shm: for the table that the programs of this machine share.\n"
                "  Without one a table in a directory of its own is used and removed.\n", (int)WORKERS);
        return asked ? 0 : 2;
    }

    stage = getpid();
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(clean_up);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_signal;
        sigfillset(&action.sa_mask);
        sigaction(signals[i], &action, NULL);
    }
    alarm(LIMIT);

    if (argc < 2) {
        strcpy(directory, access("/dev/shm", W_OK) == 0 ? "/dev/shm/buflock-demo-XXXXXX" : "/tmp/buflock-demo-XXXXXX");
        if (mkdtemp(directory) == NULL) {
            directory[0] = '\0';
            fail("making a directory in /dev/shm or /tmp", strerror(errno));
        }
        snprintf(own, sizeof own, "shm:demo?dir=%s", directory);
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap", strerror(errno));
    open_lock(url);

    printf("%d processes miss the same page at the same moment. Building it takes %d ms.\n", (int)WORKERS,
           STEPS * STEP_MS);
    /* A URL may hold a password. */
    printf("buflock %s, %.*s%s\n", buflock_version(), (int)strcspn(url, ":") + 1, url,
           argc < 2 ? " in a directory of its own" : "");
    print_notices();

    without = play("Without a lock", false, NONE);
    with = play("With the lock: one builds, the others wait and take what it built", true, NONE);
    expect(with == 1, "exactly one was to build");
    killed = play("With the lock, builder killed (kill -9): another takes over when the lease ends", true, KILLED);
    expect(killed > 1, "another was to take over");
    play("With the lock, builder stopped past its lease: its late page is refused", true, STOPPED);
    expect(shared->reports[shared->victim].refused_by != 0, "the late page was to be refused");

    printf("\nBuilds for one page: %d without the lock, %d with it.\n", without, with);
    if (failures > 0)
        printf("%d FAILED.\n", failures);
    buflock_free(lock);
    return failures > 0;
}
