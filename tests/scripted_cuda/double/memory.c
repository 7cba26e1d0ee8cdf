/* Memory of the scripted devices, counted and addressable; copies; virtual memory, of which expandable segments are
 * made. */
#include "scripted.h"
#include "table.h"

#include <pthread.h>

#define PAGE 4096ull
#define GRANULARITY (2 * MIB)
#define FIRST_ADDRESS 0x580000000000ull /* 32 TiB that Linux gives to no process of its own accord */
#define LAST_ADDRESS 0x780000000000ull
#define LONGEST_COPY (16 * MIB) /* a longer copy moves its first page only: a host has less memory than a GPU */
#define LONGEST_ON_DEVICE (1 * MIB)
#define MAX_BLOCKS (1 << 18)

struct block {
  uintptr_t address;
  size_t bytes;
  int device, physical; /* physical: pages without addresses, of cuMemCreate */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[MAX_BLOCKS];
static int num_blocks;
static uintptr_t next_address = FIRST_ADDRESS;
__thread int scripted_current;

static unsigned long long number(const char *name, unsigned long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
size_t scripted_total(void) { return number("SCRIPTED_CUDA_BYTES", 80ull << 30); }
int scripted_devices(void) {
  unsigned long long asked = number("SCRIPTED_CUDA_DEVICES", 8);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && !*visible) return 0;
  return asked < MAX_DEVICES ? asked : MAX_DEVICES;
}

static size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }
static int on_device(const void *p) { return (uintptr_t)p >= FIRST_ADDRESS && (uintptr_t)p < LAST_ADDRESS; }

/* Addresses that were never used before, with a hole behind them in which overruns fault. */
static uintptr_t take_addresses(size_t bytes) {
  uintptr_t at = next_address;
  size_t length = rounded(bytes, GRANULARITY);
  next_address += length + GRANULARITY;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (next_address > LAST_ADDRESS || mmap((void *)at, length, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
    fprintf(stderr, "scripted_cuda: no addresses left for %zu bytes\n", bytes);
    abort();
  }
  return at;
}

/* Count `bytes` against a device; 0 if it, with what other processes hold, has too little left. */
static uintptr_t take(size_t bytes, int device, int physical) {
  static uintptr_t handles;
  uintptr_t at = 0;
  pthread_mutex_lock(&lock);
  size_t counted = rounded(bytes, bytes < MIB ? 512 : GRANULARITY);
  if (table_used(device) + counted <= scripted_total() && num_blocks < MAX_BLOCKS) {
    at = physical ? ++handles : take_addresses(bytes);
    table_own(device)->bytes += counted;
    blocks[num_blocks++] = (struct block){at, counted, device, physical};
  }
  pthread_mutex_unlock(&lock);
  return at;
}
static void give(uintptr_t address, int physical) {
  pthread_mutex_lock(&lock);
  for (int i = num_blocks - 1; i >= 0; i--)
    if (blocks[i].address == address && blocks[i].physical == physical) {
      table_own(blocks[i].device)->bytes -= blocks[i].bytes;
      if (!physical) munmap((void *)address, rounded(blocks[i].bytes, GRANULARITY));
      blocks[i] = blocks[--num_blocks];
      break;
    }
  pthread_mutex_unlock(&lock);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  uint64_t used = table_used(scripted_current);
  *total = scripted_total();
  *available = *total > used ? *total - used : 0;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n) {
  *p = n ? (void *)take(n, scripted_current, 0) : NULL;
  return *p || !n ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
  if (p) give((uintptr_t)p, 0);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
  return posix_memalign(p, PAGE, n ? n : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void *p) {
  free(p);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *p) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = on_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  if (on_device(p)) a->devicePointer = (void *)p, a->device = scripted_current;
  return cudaSuccess;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute a, CUdeviceptr p) {
  if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    *(CUdeviceptr *)data = p;
  else
    *(unsigned *)data = 0;
  return CUDA_SUCCESS;
}

/* ---- bytes: what was copied over a limit is not there to be read; kernels would not have written it either ----------
 */

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  int devices = on_device(to) + on_device(from);
  size_t most = devices == 2 ? LONGEST_ON_DEVICE : devices == 1 ? LONGEST_COPY : n;
  memmove(to, from, n <= most ? n : PAGE);
  return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t n) {
  uintptr_t first = rounded((uintptr_t)p, PAGE), last = ((uintptr_t)p + n) / PAGE * PAGE, end = (uintptr_t)p + n;
  if (value || last <= first) {
    memset(p, value, n <= LONGEST_COPY ? n : PAGE);
    return cudaSuccess;
  }
  memset(p, 0, first - (uintptr_t)p);
  madvise((void *)first, last - first, MADV_DONTNEED); /* whole pages: dropped, and zero when read again */
  memset((void *)last, 0, end - last);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  return cudaMemcpy(to, from, n, kind);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int i, const void *from, int j, size_t n, cudaStream_t s) {
  return cudaMemcpy(to, from, n, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t s) {
  for (size_t i = 0; i < height && i * width < LONGEST_ON_DEVICE; i++)
    cudaMemcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) { return cudaMemset(p, value, n); }
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *p, size_t n, size_t offset, enum cudaMemcpyKind kind) {
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) { /* a symbol is part of its module: not counted */
  static void *area;
  if (!area) area = (void *)take_addresses(GRANULARITY);
  *p = area;
  return cudaSuccess;
}

/* ---- virtual memory
 * --------------------------------------------------------------------------------------------------- */

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags) {
  pthread_mutex_lock(&lock);
  *p = take_addresses(n);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  munmap((void *)p, n);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p,
                     unsigned long long flags) {
  *h = take(n, p ? p->location.id : scripted_current, 1);
  return *h ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  give(h, 1);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  madvise((void *)p, n, MADV_DONTNEED);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t count) { return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *p,
                                       CUmemAllocationGranularity_flags flags) {
  *g = GRANULARITY;
  return CUDA_SUCCESS;
}
