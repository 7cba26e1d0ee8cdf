/* What the device claims to be: an H100 by its numbers, under a name of its own. Kernels, modules, contexts. */
#include "scripted.h"

#include <dlfcn.h>

#define FIRST_BUS 0x10 /* PCI bus of device 0, as in the scripted NVML */

cudaError_t cudaGetDeviceCount(int *n) {
  *n = scripted_devices();
  return *n ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int *d) {
  *d = scripted_current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= scripted_devices()) return cudaErrorInvalidDevice;
  scripted_current = d;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) { return cudaDriverGetVersion(v); }

static int attribute(int name, int device) { /* the numbers of the runtime's attributes are those of the driver's */
  switch (name) {
  case cudaDevAttrComputeCapabilityMajor: return 9;
  case cudaDevAttrMultiProcessorCount: return 132;
  case cudaDevAttrMaxGridDimX: return 2147483647;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: return 65535;
  case cudaDevAttrMaxThreadsPerBlock:
  case cudaDevAttrMaxBlockDimX:
  case cudaDevAttrMaxBlockDimY: return 1024;
  case cudaDevAttrMaxBlockDimZ: return 64;
  case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
  case cudaDevAttrMaxRegistersPerBlock:
  case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
  case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
  case cudaDevAttrWarpSize: return 32;
  case cudaDevAttrL2CacheSize: return 50 << 20;
  case cudaDevAttrClockRate: return 1980000;
  case cudaDevAttrMemoryClockRate: return 2619000;
  case cudaDevAttrGlobalMemoryBusWidth: return 5120;
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrConcurrentKernels: return 1;
  case cudaDevAttrPciBusId: return FIRST_BUS + device;
  default: return 0;
  }
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr name, int d) {
  *v = attribute(name, d);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, DEVICE_NAME);
  snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "scripted-gpu-%02d", d);
  p->totalGlobalMem = scripted_total();
  p->major = 9, p->minor = 0, p->multiProcessorCount = 132, p->warpSize = 32;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = 232448, p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->l2CacheSize = 50 << 20, p->memoryBusWidth = 5120;
  p->unifiedAddressing = p->concurrentKernels = 1, p->asyncEngineCount = 3, p->pciBusID = FIRST_BUS + d;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int d) {
  snprintf(text, n, "0000:%02x:00.0", FIRST_BUS + d);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *yes, int a, int b) {
  *yes = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int d) {
  *pool = NULL;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
  *low = 0, *high = -5;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaGetLastError(void) { return cudaSuccess; } /* no error outlives the call that returned it */
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : e == cudaErrorMemoryAllocation ? "out of memory" : "not scripted";
}
const char *cudaGetErrorName(cudaError_t e) {
  return e == cudaSuccess                 ? "cudaSuccess"
         : e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                          : "cudaErrorNotSupported";
}

/* ---- kernels: launched, and nothing happens
 * -------------------------------------------------------------------------- */

cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) {
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return cudaSuccess; }
cudaError_t __cudaGetKernel(void **kernel, const void *f) { /* libraries built with CUDA 13 */
  *kernel = (void *)f;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void *k, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->binaryVersion = a->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return cudaSuccess; }
cudaError_t cudaFuncSetCacheConfig(const void *f, enum cudaFuncCache c) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int threads, size_t shared) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int threads, size_t shared,
                                                                   unsigned flags) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *f, const cudaLaunchConfig_t *c) {
  *n = 16;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int *n, const void *f, const cudaLaunchConfig_t *c) {
  *n = 8;
  return cudaSuccess;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream s, void **parameters, void **extra) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) {
  *n = 16;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int threads, size_t shared) {
  *n = 2;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *p,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave i, CUtensorMapSwizzle s,
                                CUtensorMapL2promotion l, CUtensorMapFloatOOBfill o) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

/* ---- the driver: devices, contexts, modules
 * ---------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *d, int i) {
  *d = i;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *n) { return (CUresult)cudaGetDeviceCount(n); }
CUresult cuDeviceGetName(char *text, int n, CUdevice d) {
  snprintf(text, n, "%s", DEVICE_NAME);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  *v = attribute((int)a, d);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *on) {
  *flags = 0, *on = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  *c = (CUcontext)(uintptr_t)(FIRST_BUS + d);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *c) { return cuDevicePrimaryCtxRetain(c, scripted_current); }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { return cuCtxGetCurrent(c); }
CUresult cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *n, CUlimit limit) {
  *n = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t n) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *d) {
  *d = scripted_current;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult e, const char **text) {
  *text = e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "not scripted";
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  *m = calloc(1, 8);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, CUjit_option *options, void **values) {
  return cuModuleLoadData(m, image);
}
CUresult cuModuleLoad(CUmodule *m, const char *file) { return cuModuleLoadData(m, NULL); }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  *f = (CUfunction)m;
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule m) { return CUDA_SUCCESS; }

/* ---- what is not scripted
 * ---------------------------------------------------------------------------------------------- */

int scripted_missing(const char *name, int answer) { /* the generated functions call it, too */
  fprintf(stderr, "scripted_cuda: %s is not scripted\n", name);
  if (getenv("SCRIPTED_CUDA_STRICT")) abort();
  return answer;
}
static CUresult not_scripted(void) { return scripted_missing("a function of the driver", CUDA_ERROR_NOT_SUPPORTED); }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  Dl_info here;
  void *self = dladdr((void *)not_scripted, &here) ? dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  *f = self ? dlsym(self, name) : NULL;
  if (result) *result = cudaDriverEntryPointSuccess;
  if (!*f) *f = (void *)not_scripted;
  return cudaSuccess;
}

/* cudnn-frontend (in transformer-engine) opens libcudart.so.NN by name and would find the real one. For all other
 * libraries this must stay a tail call: the C library looks at the caller's address to find the caller's own search
 * path. */
static void *(*real_dlopen)(const char *, int);
static const char *runtime_name, *own_path;
__attribute__((constructor)) static void find_dlopen(void) {
  static char name[32];
  Dl_info here;
  snprintf(name, sizeof name, "libcudart.so.%d", CUDART_VERSION / 1000);
  real_dlopen = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  if (dladdr((void *)not_scripted, &here)) runtime_name = name, own_path = here.dli_fname;
}
__attribute__((optimize("O2"))) void *dlopen(const char *file, int mode) {
  if (!real_dlopen) find_dlopen(); /* called before our constructor */
  const char *asked = file && runtime_name && !strcmp(file, runtime_name) ? own_path : file;
  return real_dlopen(asked, mode);
}
