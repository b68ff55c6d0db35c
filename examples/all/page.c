/* page.c - a page from a cache of files that programs in several languages share.
 *
 *     page URL DIRECTORY
 *
 * Each line of the input is a key; the answer is the page, in a line. What is missing one builds, the others wait.
 */
#define _POSIX_C_SOURCE 200809L

#include <buflock.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 5000, LEASE = 10000, PAGE = 128 };

static int cached(const char *dir, const char *key, char *page)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, key);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int found = fgets(page, PAGE, file) != NULL;
    fclose(file);
    return found;
}

/* Counts, takes its time, and publishes the whole page in one step. */
static int build(const char *dir, const char *key)
{
    char path[256], part[300], line[PAGE];
    snprintf(path, sizeof path, "%s/builds", dir);
    int count = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    int length = snprintf(line, sizeof line, "%s C\n", key);
    if (count < 0 || write(count, line, (size_t)length) != length)
        return 0;
    close(count);
    nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    snprintf(path, sizeof path, "%s/%s", dir, key);
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(part, "w");
    if (file == NULL)
        return 0;
    fprintf(file, "page %s\n", key);
    return fclose(file) == 0 && rename(part, path) == 0;
}

static const char *fetch(const buflock_t *lock, const char *dir, const char *key, char *page)
{
    char token[BUFLOCK_TOKEN_SIZE];

    while (!cached(dir, key, page)) {
        int status = buflock_acquire(lock, key, strlen(key), LEASE, 0, token, NULL);
        if (status == BUFLOCK_OK) {
            int done = cached(dir, key, page) || build(dir, key);
            buflock_release(lock, key, strlen(key), token);
            if (!done)
                return "cannot build\n";
        } else if (status == BUFLOCK_BUSY) {
            status = buflock_await(lock, key, strlen(key), PATIENCE);
            if (status == BUFLOCK_BUSY)
                return "too late\n";
        }
        if (status < 0)
            return buflock_last_error();
    }
    return page;
}

int main(int argc, char **argv)
{
    char key[64], page[PAGE];
    buflock_t *lock;

    if (argc != 3 || buflock_new(argv[1], NULL, &lock) != BUFLOCK_OK) {
        fprintf(stderr, "page URL DIRECTORY: %s\n", buflock_last_error());
        return 2;
    }
    while (fgets(key, sizeof key, stdin) != NULL) {
        key[strcspn(key, "\n")] = 0;
        fputs(fetch(lock, argv[2], key, page), stdout);
        fflush(stdout);
    }
    buflock_free(lock);
    return 0;
}
