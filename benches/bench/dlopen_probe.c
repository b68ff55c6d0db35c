/* Prints how many nanoseconds dlopen takes in a C program that has loaded nothing but libc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv) {
  struct timespec from, to;
  void *library;
  if (argc != 2)
    return 2;
  clock_gettime(CLOCK_MONOTONIC, &from);
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  clock_gettime(CLOCK_MONOTONIC, &to);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  printf("%lld\n", (to.tv_sec - from.tv_sec) * 1000000000LL + (to.tv_nsec - from.tv_nsec));
  return 0;
}
