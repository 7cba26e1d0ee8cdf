/* A wall clock that is set back by an hour as soon as the file $CLOCK_SET_BACK exists; monotonic clocks go on.
 * cc -shared -fPIC -o shifted_clock.so shifted_clock.c -ldl; LD_PRELOAD=./shifted_clock.so */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
  const char *file = getenv("CLOCK_SET_BACK");
  return file && access(file, F_OK) == 0 ? -3600 : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && id == CLOCK_REALTIME) now->tv_sec += shift();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec at;
  (void)zone;
  int failed = clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *where) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (where) *where = at.tv_sec;
  return at.tv_sec;
}
