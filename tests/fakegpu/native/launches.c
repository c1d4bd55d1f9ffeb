/* Kernels: their registration by the runtime's libraries, modules that the driver loads, launches and their limits. */
#include "stand_in.h"

static LaunchHook launch_hook;
EXPORT void fakegpu_set_launch_hook(LaunchHook h) { launch_hook = h; }

typedef struct {
  const void *host;
  const char *name;
  int optin;
} Function;
static Function *functions;
static size_t n_functions, cap_functions;
static int is_sorted;
EXPORT void **__cudaRegisterFatBinary(void *b) {
  static void *h;
  return &h;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **h) {}
EXPORT void __cudaUnregisterFatBinary(void **h) {}
EXPORT char __cudaInitModule(void **h) { return 1; }
EXPORT void __cudaRegisterVar(void **h, char *hv, char *da, const char *dn, int e, size_t s, int c, int g) {}
EXPORT void __cudaRegisterFunction(void **h, const char *host, char *dev, const char *name, int l, void *t, void *b,
                                   void *bd, void *gd, int *w) {
  LOCK;
  if (n_functions == cap_functions) {
    cap_functions = cap_functions ? 2 * cap_functions : 65536;
    functions = realloc(functions, cap_functions * sizeof *functions);
  }
  functions[n_functions++] = (Function){host, name, 0};
  is_sorted = 0;
  UNLOCK;
}
static int by_host(const void *a, const void *b) {
  const char *x = ((Function *)a)->host, *y = ((Function *)b)->host;
  return x < y ? -1 : x > y;
}
static Function *function(const void *h) {
  LOCK;
  if (!is_sorted) {
    qsort(functions, n_functions, sizeof *functions, by_host);
    is_sorted = 1;
  }
  Function k = {h, 0, 0};
  Function *f = bsearch(&k, functions, n_functions, sizeof *functions, by_host);
  UNLOCK;
  return f;
}
static __thread struct {
  unsigned g[3], b[3];
  size_t s;
  void *st;
} pushed;
EXPORT unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, struct CUstream_st *st) {
  memcpy(pushed.g, &g, 12);
  memcpy(pushed.b, &b, 12);
  pushed.s = s;
  pushed.st = st;
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *s, void *st) {
  memcpy(g, pushed.g, 12);
  memcpy(b, pushed.b, 12);
  *s = pushed.s;
  *(void **)st = pushed.st;
  return 0;
}
static int check_shape(const char *name, const unsigned *g, const unsigned *b) {
  if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535 || g[0] > 2147483647u || !b[0] ||
      (uint64_t)b[0] * b[1] * b[2] > 1024) {
    counts.launch_faults++;
    fprintf(stderr, "fakegpu: %s cannot be launched with grid %u,%u,%u block %u,%u,%u\n", name, g[0], g[1], g[2], b[0],
            b[1], b[2]);
    return cudaErrorInvalidConfiguration;
  }
  return 0;
}
static cudaError_t launch(const void *f, const unsigned *g, const unsigned *b, void **args, size_t s, void *st) {
  Function *fn = function(f);
  const char *name = fn ? fn->name : "?";
  counts.launches++;
  if (trace() > 1) fprintf(stderr, "fakegpu: launch %s <%u,%u,%u><%u>\n", name, g[0], g[1], g[2], b[0]);
  int e = check_shape(name, g, b);
  if (e) return fail(e);
  int most;
  device_attribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (s > (size_t)most || (s > 49152 && fn && fn->optin < (int)s)) {
    counts.launch_faults++;
    fprintf(stderr, "fakegpu: %s asks for %zu bytes of shared memory (opted in %d)\n", name, s, fn ? fn->optin : -1);
    return fail(cudaErrorInvalidValue);
  }
  LOCK;
  Graph *gr = graph_of(st);
  if (gr) push_node(gr, (Node){.type = KERNEL});
  UNLOCK;
  return launch_hook && launch_hook(name, f, g, b, args, s, st, 0) ? fail(cudaErrorLaunchFailure) : 0;
}
EXPORT cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t s, cudaStream_t st) {
  unsigned gg[3] = {g.x, g.y, g.z}, bb[3] = {b.x, b.y, b.z};
  return launch(f, gg, bb, args, s, st);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args) {
  unsigned gg[3] = {c->gridDim.x, c->gridDim.y, c->gridDim.z}, bb[3] = {c->blockDim.x, c->blockDim.y, c->blockDim.z};
  return launch(f, gg, bb, args, c->dynamicSmemBytes, c->stream);
}
EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = a->ptxVersion = capability();
  return 0;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) {
  int most;
  device_attribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  Function *fn = function(f);
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (v > most) {
      counts.launch_faults++;
      fprintf(stderr, "fakegpu: %s asks for %d bytes of shared memory, of %d\n", fn ? fn->name : "?", v, most);
      return fail(cudaErrorInvalidValue);
    }
    if (fn) fn->optin = v;
  }
  return 0;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s,
                                                                          unsigned fl) {
  *n = 2;
  return 0;
}

/* The driver: modules and functions, as Triton loads and launches them. */
typedef struct {
  char name[256];
  int optin;
} Loaded;
EXPORT CUresult cuModuleLoadData(CUmodule *m, const void *i) {
  *m = (CUmodule)calloc(1, 8);
  return refuse_in_capture("cuModuleLoadData") ? 900 : 0;
}
EXPORT CUresult cuModuleLoad(CUmodule *m, const char *path) { /* Inductor loads its kernels from files */
  return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(m, path);
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule *m, const void *i, unsigned n, CUjit_option *o, void **v) {
  return cuModuleLoadData(m, i);
}
EXPORT CUresult cuModuleUnload(CUmodule m) { return 0; }
EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) {
  Loaded *l = calloc(1, sizeof *l);
  snprintf(l->name, 256, "%s", n);
  *f = (CUfunction)l;
  return 0;
}
EXPORT CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return 0;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ((Loaded *)f)->optin = v;
  return 0;
}
EXPORT CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
EXPORT CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) {
  *n = 16;
  return 0;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int b, size_t s) {
  *n = 2;
  return 0;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  Loaded *l = (Loaded *)f;
  unsigned g[3] = {c->gridDimX, c->gridDimY, c->gridDimZ}, b[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  counts.driver_launches++;
  if (trace() > 1)
    fprintf(stderr, "fakegpu: driver launch %s <%u,%u,%u><%u> shared %u\n", l->name, g[0], g[1], g[2], b[0],
            c->sharedMemBytes);
  int e = check_shape(l->name, g, b);
  if (e) return e;
  if (c->sharedMemBytes > 49152 && l->optin < (int)c->sharedMemBytes) {
    counts.launch_faults++;
    return CUDA_ERROR_INVALID_VALUE;
  }
  LOCK;
  Graph *gr = graph_of(c->hStream);
  if (gr) push_node(gr, (Node){.type = KERNEL});
  UNLOCK;
  if (launch_hook)
    return launch_hook(l->name, f, g, b, args, c->sharedMemBytes, c->hStream, 1) ? CUDA_ERROR_LAUNCH_FAILED : 0;
  return 0;
}
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned s, CUstream st, void **args, void **extra) {
  CUlaunchConfig c = {gx, gy, gz, bx, by, bz, s, st, 0, 0};
  return cuLaunchKernelEx(&c, f, args, extra);
}
