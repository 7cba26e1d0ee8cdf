/* cuBLAS, cuDNN and NCCL, as far as their callers read answers.
 *
 * No function computes. Plans of cuBLAS and cuDNN ask for no workspace, so a plan's workspace is missing here; what
 * torch and transformer-engine allocate for these libraries anyway is real. NCCL behaves as if every rank had
 * this rank's data; nothing arrives from other ranks, and NCCL takes no device memory.
 */
#include "scripted.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>
#include <nccl.h>

static int make(void *handle) { /* something to point at */
  *(void **)handle = calloc(1, 64);
  return 0;
}

/* ---- cuBLAS -------------------------------------------------------------------------------------------------------
 */

cublasStatus_t cublasCreate_v2(cublasHandle_t *h) { return make(h); }
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *mode) {
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}
const char *cublasGetStatusString(cublasStatus_t s) { return "scripted"; }
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }
cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *v) {
  *v = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) { return make(h); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c, cudaDataType_t t) {
  return make(d);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) { return make(p); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t rows, uint64_t columns,
                                          int64_t stride) {
  return make(l);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int asked,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
  memset(results, 0, sizeof *results); /* one algorithm, with a workspace of 0 bytes */
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuDNN: its "backend" functions, which cudnn-frontend calls in torch and in transformer-engine
 * --------------------- */

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t s) { return "scripted"; }
cudnnStatus_t cudnnCreate(cudnnHandle_t *h) { return make(h); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t *s) {
  *s = NULL;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t t, cudnnBackendDescriptor_t *d) {
  return make(d);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t asked, int64_t *count, void *values) {
  /* One engine, one plan, a workspace of 0 bytes, no notes and no knobs. */
  int none = type == CUDNN_TYPE_NUMERICAL_NOTE || type == CUDNN_TYPE_BEHAVIOR_NOTE || type == CUDNN_TYPE_CHAR ||
             name == CUDNN_ATTR_ENGINE_KNOB_INFO;
  if (count) *count = !none;
  if (!none && values && asked > 0 && type == CUDNN_TYPE_INT64) *(int64_t *)values = 0;
  if (!none && values && asked > 0 && type == CUDNN_TYPE_INT32) *(int32_t *)values = 0;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- NCCL
 * ------------------------------------------------------------------------------------------------------------- */

#define SMALL (64 << 10)

struct ncclComm {
  int rank, size;
};

static size_t size_of(ncclDataType_t t) {
  switch (t) {
  case ncclInt8:
  case ncclUint8:
  case ncclFloat8e4m3:
  case ncclFloat8e5m2: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  default: return 8;
  }
}
static ncclResult_t copy(void *to, const void *from, size_t bytes) {
  if (to != from) cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
  return ncclSuccess;
}
static ncclResult_t communicator(ncclComm_t *c, int size, int rank) {
  *c = malloc(sizeof **c);
  (*c)->rank = rank, (*c)->size = size;
  return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *v) {
  *v = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 7, sizeof *id);
  return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r) { return "scripted"; }
const char *ncclGetLastError(ncclComm_t c) { return "scripted"; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int size, ncclUniqueId id, int rank, ncclConfig_t *f) {
  return communicator(c, size, rank);
}
ncclResult_t ncclCommInitRank(ncclComm_t *c, int size, ncclUniqueId id, int rank) {
  return communicator(c, size, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t *c, int size, int rank, int ids, ncclUniqueId *id, ncclConfig_t *f) {
  return communicator(c, size, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t *c, ncclConfig_t *f) {
  return communicator(c, parent->size, key);
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n) {
  *n = c->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *r) {
  *r = c->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e) {
  *e = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void **p, size_t n) { return cudaMalloc(p, n) ? ncclSystemError : ncclSuccess; }
ncclResult_t ncclMemFree(void *p) { return cudaFree(p) ? ncclSystemError : ncclSuccess; }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c,
                           cudaStream_t s) {
  return copy(to, from, n * size_of(t));
}
ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t o, int root, ncclComm_t c,
                        cudaStream_t s) {
  return c->rank == root ? copy(to, from, n * size_of(t)) : ncclSuccess;
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
  return c->rank == root ? copy(to, from, n * size_of(t)) : ncclSuccess;
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
  size_t bytes =
      n * size_of(t); /* small data into every place, as if all ranks had the same: torch's object collectives */
  for (int i = 0; i < c->size; i++)
    if (i == c->rank || bytes <= SMALL) copy((char *)to + i * bytes, from, bytes);
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c,
                               cudaStream_t s) {
  return copy(to, (const char *)from + c->rank * n * size_of(t), n * size_of(t));
}
