/* A scripted CUDA: memory, streams, events and graphs of a GPU that is not there. Kernels do nothing.
 *
 * What is real: every allocation is counted against the device's size, so that torch's own caching allocator decides,
 * splits, caches, frees and fails as on a GPU; small copies and memsets move bytes; streams, events and captures know
 * who waits for whom. What is not: memory that only kernels write stays as it was, mostly zero.
 *
 *   SCRIPTED_CUDA_BYTES    size of each device (80 GiB)
 *   SCRIPTED_CUDA_DEVICES  how many devices this process sees (8)
 *   SCRIPTED_CUDA_TABLE    file in which the processes of a machine count their memory (table.h); unset: alone
 *   SCRIPTED_CUDA_BUSY     set: an event is done only after a later synchronisation, not at once. A block that another
 *                          stream used then stays taken long: without it `reserved` is optimistic, with it pessimistic
 *   SCRIPTED_CUDA_STRICT   set: abort at the first call that is not scripted; unset: print its name and fail
 *
 * environment.py generates the functions that torch and transformer-engine need and these files lack: those of
 * silent.txt succeed and do nothing, all others print their name and fail.
 */
#ifndef SCRIPTED_H
#define SCRIPTED_H
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define MIB (1ull << 20)
#define MAX_DEVICES 16
#define DEVICE_NAME "Scripted NVIDIA H100 80GB HBM3" /* what records and documents recognise */

extern __thread int scripted_current; /* device of this thread */

int scripted_devices(void);
size_t scripted_total(void);
void scripted_synchronised(void);
int scripted_missing(const char *name, int answer);

#endif
