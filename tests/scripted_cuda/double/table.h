/* Which process holds how many bytes of which device: a file that all processes of one scripted machine map.
 *
 * A line of it belongs to one process and device. Lines of processes that have ended, however, count nothing and may be
 * taken over, so that a killed rank gives its memory back as a driver would have it.
 */
#ifndef TABLE_H
#define TABLE_H
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_LINES 256
struct line {
  _Atomic int pid;
  int device;
  _Atomic uint64_t bytes;
};

static inline struct line *table_lines(void) {
  static struct line *lines;
  if (lines) return lines;
  const char *path = getenv("SCRIPTED_CUDA_TABLE");
  size_t size = MAX_LINES * sizeof(struct line);
  int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  int shared = file >= 0 && ftruncate(file, size) == 0;
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                  shared ? file : -1, 0);
  if (file >= 0) close(file);
  return lines = at == MAP_FAILED ? NULL : at;
}
/* A zombie has given back its memory, though its parent may never ask for it. */
static inline int table_alive(int pid) {
  if (!pid || pid == getpid()) return pid != 0;
  char path[32], state = 'X';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
  fclose(file);
  return state != 'Z' && state != 'X';
}

static inline uint64_t table_used(int device) {
  uint64_t sum = 0;
  for (struct line *l = table_lines(); l < table_lines() + MAX_LINES; l++)
    if (l->bytes && l->device == device && table_alive(l->pid)) sum += l->bytes;
  return sum;
}

/* The line of this process for `device`; a forked child gets its own. */
static inline struct line *table_own(int device) {
  for (struct line *l = table_lines(); l < table_lines() + MAX_LINES; l++)
    if (l->pid == getpid() && l->device == device) return l;
  for (struct line *l = table_lines(); l < table_lines() + MAX_LINES; l++) {
    int before = l->pid;
    if (!table_alive(before) &&
        __atomic_compare_exchange_n((int *)&l->pid, &before, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      l->device = device, l->bytes = 0;
      return l;
    }
  }
  abort(); /* more processes than lines */
}

#endif
