// A wall clock that is off by what a file says, in microseconds: for LD_PRELOAD. Monotonic clocks stay right.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *offset;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("TESTSERVER_CLOCK");
  int fd = path ? open(path, O_RDONLY) : -1;
  if (fd < 0) return;
  void *p = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  if (p != MAP_FAILED) offset = p;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int failed = syscall(SYS_clock_gettime, id, ts);
  if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    long long us = *offset, ns = ts->tv_nsec + us % 1000000 * 1000;
    ts->tv_sec += us / 1000000 + (ns >= 1000000000) - (ns < 0);
    ts->tv_nsec = (ns + 1000000000) % 1000000000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  struct timespec ts;
  if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *t) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (t) *t = ts.tv_sec;
  return ts.tv_sec;
}
