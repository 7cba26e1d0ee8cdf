/* Streams, events, captures and graphs: they know who waits for whom, and all work is done at once or, with
 * SCRIPTED_CUDA_BUSY, at the next synchronisation. */
#include "scripted.h"

#include <time.h>

struct stream {
  unsigned long long capture; /* number of the capture that it belongs to */
};
struct event {
  unsigned long long capture, synchronisations, number;
  struct timespec at;
};
struct graph {
  int nodes;
};

static struct stream default_stream;
static unsigned long long synchronisations; /* how many there were: each completes all events before it */
static unsigned long long recorded, done = -1ull; /* events in order, and how many of them scripted_behind let be done */
static unsigned long long active, captures; /* the capture that goes on, and how many there were */
static struct graph growing;

static struct stream *stream_of(cudaStream_t s) { return (uintptr_t)s <= 2 ? &default_stream : (struct stream *)s; }
static int capturing(cudaStream_t s) { return active && stream_of(s)->capture == active; }
void scripted_synchronised(void) { synchronisations++; }
/* For programs: all events so far are done but the last `events`; later ones are not, until this is asked again. */
void scripted_behind(unsigned long long events) {
  unsigned long long most = recorded > events ? recorded - events : 0;
  if (done == -1ull || most > done) done = most;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  *s = calloc(1, sizeof(struct stream));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (stream_of(s) != &default_stream) free(s);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) {
  synchronisations++;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  synchronisations++;
  return capturing(s) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned flags) {
  f(s, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
  f(data);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  if (e && active && ((struct event *)e)->capture == active) stream_of(s)->capture = active; /* joins the capture */
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  struct event *event = calloc(1, sizeof *event);
  event->synchronisations = -1; /* never recorded: done */
  *e = (cudaEvent_t)event;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  free(e);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  struct event *event = (struct event *)e;
  int is_done = !getenv("SCRIPTED_CUDA_BUSY") || event->synchronisations != synchronisations;
  return is_done && event->number <= done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  synchronisations++;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
  struct event *event = (struct event *)e;
  event->capture = capturing(s) ? active : 0;
  event->synchronisations = synchronisations;
  event->number = ++recorded;
  clock_gettime(CLOCK_MONOTONIC, &event->at);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { /* the host's time: kernels take none */
  struct event *from = (struct event *)a, *to = (struct event *)b;
  *ms = (to->at.tv_sec - from->at.tv_sec) * 1e3 + (to->at.tv_nsec - from->at.tv_nsec) / 1e6;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
  if (active) return cudaErrorNotSupported; /* one capture at a time */
  stream_of(s)->capture = active = ++captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
  if (!capturing(s)) return cudaErrorIllegalState;
  active = 0;
  struct graph *made = calloc(1, sizeof *made);
  made->nodes = 1;
  *g = (cudaGraph_t)made;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  *status = capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *g, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  cudaStreamIsCapturing(s, status);
  if (id) *id = capturing(s) ? active : 0;
  if (g) *g = (cudaGraph_t)&growing;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                size_t count, unsigned flags) {
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count) {
  *count = ((struct graph *)g)->nodes;
  if (nodes) memset(nodes, 0, *count * sizeof *nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) {
  *x = calloc(1, sizeof(struct graph));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiate(x, g, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  free(g);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
  free(x);
  return cudaSuccess;
}
