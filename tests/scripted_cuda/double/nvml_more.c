/* What torch asks of NVML beyond tests/native/fake_nvml.c, and that NVML's memory follows the scripted driver.
 *
 * torch asks for the processes when memory is short; after any error it raises an internal assertion instead of its
 * OutOfMemoryError.
 */
#include "table.h"

#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7

unsigned long long scripted_used(int device) { return table_used(device); }

/* Up to `most` processes that hold memory of a device; returns how many there are. */
unsigned scripted_processes(int device, unsigned most, unsigned *pids, unsigned long long *bytes) {
  unsigned count = 0;
  for (struct line *l = table_lines(); l < table_lines() + MAX_LINES; l++) {
    if (!l->bytes || l->device != device || !table_alive(l->pid)) continue;
    if (count < most) pids[count] = l->pid, bytes[count] = l->bytes;
    count++;
  }
  return count;
}

struct process { /* of NVML's first version, which torch asks for */
  unsigned pid;
  unsigned long long used;
};
int nvmlDeviceGetIndex(void *device, unsigned *index);
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process *processes) {
  unsigned index, pids[MAX_LINES], most = *count;
  unsigned long long bytes[MAX_LINES];
  int failed = nvmlDeviceGetIndex(device, &index);
  if (failed) return failed;
  *count = scripted_processes(index, MAX_LINES, pids, bytes);
  if (*count > most) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) processes[i] = (struct process){pids[i], bytes[i]};
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void) { return NOT_SUPPORTED; }
