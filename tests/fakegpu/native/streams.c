/* Streams, events, stream capture and graphs. Everything is done at once and in order; what is kept are the rules. */
#include "stand_in.h"

static __thread int thread_mode = cudaStreamCaptureModeGlobal;
static Stream *capturing_list[64];
static int n_capturing;
static uint64_t next_id = 1;
static Hook replay_hook;
EXPORT void fakegpu_set_replay_hook(Hook h) { replay_hook = h; }
Stream *real(void *s) { return (s == 0 || s == (void *)1 || s == (void *)2) ? 0 : (Stream *)s; }
Graph *graph_of(void *s) {
  Stream *r = real(s);
  return r && r->status == cudaStreamCaptureStatusActive ? (r->origin ? r->origin->graph : r->graph) : 0;
}
void push_node(Graph *g, Node n) {
  if (g->n == g->cap) {
    g->cap = g->cap ? 2 * g->cap : 64;
    g->nodes = realloc(g->nodes, g->cap * sizeof *g->nodes);
  }
  g->nodes[g->n++] = n;
}
/* Python adds what it would compute at this place of the capture; 0 where nothing is captured. */
EXPORT int fakegpu_capture_hook(void *s, uint64_t id) {
  LOCK;
  Graph *g = graph_of(s);
  if (g) push_node(g, (Node){.type = HOOK, .id = id});
  UNLOCK;
  return g != 0;
}
EXPORT int fakegpu_is_capturing(void *s) { return graph_of(s) != 0; }
int refuse_in_capture(const char *what) { /* a call that is potentially unsafe while something is captured */
  for (int i = 0; i < n_capturing; i++) {
    Stream *s = capturing_list[i];
    int is_mine = pthread_equal(s->thread, pthread_self());
    int bad = (is_mine && s->mode != cudaStreamCaptureModeRelaxed && thread_mode != cudaStreamCaptureModeRelaxed) ||
              (!is_mine && s->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal);
    if (bad) {
      s->status = cudaStreamCaptureStatusInvalidated;
      counts.capture_faults++;
      fprintf(stderr, "fakegpu: %s while a stream is captured\n", what);
      return fail(cudaErrorStreamCaptureUnsupported);
    }
  }
  return 0;
}
int refuse_sync_in_capture(void *st, const char *what) {
  Stream *s = real(st);
  if (s && s->status) {
    s->status = cudaStreamCaptureStatusInvalidated;
    counts.capture_faults++;
    fprintf(stderr, "fakegpu: %s on a stream that is captured\n", what);
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  return refuse_in_capture(what);
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int pr) {
  Stream *r = calloc(1, sizeof *r);
  r->device = current_device;
  r->priority = pr;
  *s = (cudaStream_t)r;
  return 0;
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t s) { return 0; }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) {
  *p = real(s) ? real(s)->priority : 0;
  return 0;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  counts.syncs++;
  return refuse_sync_in_capture(s, "cudaStreamSynchronize");
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t s) { return refuse_sync_in_capture(s, "cudaStreamQuery"); }
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) {
  Event *v = (Event *)e;
  Stream *r = real(s);
  if (v->captured && r && !r->status) {
    LOCK;
    r->status = cudaStreamCaptureStatusActive;
    r->origin = v->captured;
    r->id = v->captured->id;
    UNLOCK;
  }
  return 0;
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t c, void *u, unsigned f) {
  c(s, 0, u);
  return 0;
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *u) {
  f(u);
  return 0;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) {
  *e = (cudaEvent_t)calloc(1, sizeof(Event));
  return 0;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t e) {
  free(e);
  return 0;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) {
  Event *v = (Event *)e;
  Stream *r = real(s);
  clock_gettime(CLOCK_MONOTONIC, &v->t);
  v->recorded = 1;
  v->captured = r && r->status == cudaStreamCaptureStatusActive ? (r->origin ? r->origin : r) : 0;
  return 0;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
EXPORT cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (((Event *)e)->captured) return fail(cudaErrorCapturedEvent);
  return refuse_in_capture("cudaEventQuery");
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  counts.syncs++;
  if (((Event *)e)->captured) return fail(cudaErrorCapturedEvent);
  return refuse_in_capture("cudaEventSynchronize");
}
EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  Event *x = (Event *)a, *y = (Event *)b;
  if (!x->recorded || !y->recorded) return fail(cudaErrorInvalidResourceHandle);
  *ms = (y->t.tv_sec - x->t.tv_sec) * 1e3 + (y->t.tv_nsec - x->t.tv_nsec) / 1e6;
  return 0;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) {
  int o = thread_mode;
  thread_mode = *m;
  *m = o;
  return 0;
}
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t st, enum cudaStreamCaptureMode m) {
  Stream *s = real(st);
  if (!s) return fail(cudaErrorStreamCaptureUnsupported);
  if (s->status) return fail(cudaErrorIllegalState);
  LOCK;
  s->status = cudaStreamCaptureStatusActive;
  s->id = next_id++;
  s->mode = m;
  s->thread = pthread_self();
  s->origin = 0;
  s->graph = calloc(1, sizeof(Graph));
  s->graph->id = s->id;
  capturing_list[n_capturing++] = s;
  UNLOCK;
  return 0;
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t st, cudaGraph_t *g) {
  Stream *s = real(st);
  if (!s || !s->status) return fail(cudaErrorIllegalState);
  LOCK;
  int bad = s->status == cudaStreamCaptureStatusInvalidated;
  for (int i = 0; i < n_capturing; i++)
    if (capturing_list[i] == s) capturing_list[i] = capturing_list[--n_capturing];
  s->status = 0;
  UNLOCK;
  if (bad) {
    *g = 0;
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  *g = (cudaGraph_t)s->graph;
  return 0;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t st, enum cudaStreamCaptureStatus *v) {
  Stream *s = real(st);
  *v = s ? s->status : 0;
  return 0;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t st, enum cudaStreamCaptureStatus *v, unsigned long long *id,
                                               cudaGraph_t *g, const cudaGraphNode_t **deps, size_t *n) {
  Stream *s = real(st);
  *v = s ? s->status : 0;
  if (id) *id = s ? s->id : 0;
  if (g) *g = s ? (cudaGraph_t)s->graph : 0;
  if (n) *n = 0;
  if (deps) *deps = 0;
  return 0;
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f) {
  *e = (cudaGraphExec_t)g;
  return 0;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f) {
  *e = (cudaGraphExec_t)g;
  return 0;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  Graph *g = (Graph *)e;
  for (size_t i = 0; i < g->n; i++) {
    Node *x = &g->nodes[i];
    if (x->type == COPY)
      memmove(x->dst, x->src, x->n);
    else if (x->type == SET)
      memset(x->dst, x->value, x->n);
    else if (x->type == HOOK && replay_hook)
      replay_hook(x->id);
  }
  return 0;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) {
  if (!nodes) *n = ((Graph *)g)->n;
  return 0;
}
EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t a, cudaGraphNode_t *b, size_t *n) {
  *n = 0;
  return 0;
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t g) { return 0; }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return 0; }
EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t g, const char *p, unsigned f) { return 0; }
