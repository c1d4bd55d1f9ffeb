/* What the device says of itself: settings, attributes, properties, errors, and the driver's contexts. */
#include "stand_in.h"

#include <dlfcn.h>

int devices(void) {
  const char *v = getenv("FAKEGPU_DEVICES");
  const char *vis = getenv("CUDA_VISIBLE_DEVICES");
  int n = v ? atoi(v) : 1;
  if (vis) {
    if (!*vis || *vis == '-') return 0;
    int c = 1;
    for (const char *p = vis; *p; p++) c += *p == ',';
    if (c < n) n = c;
  }
  return n;
}
size_t capacity(void) {
  const char *v = getenv("FAKEGPU_MEMORY");
  return v ? strtoull(v, 0, 10) : (size_t)79 << 30;
}
int capability(void) {
  const char *v = getenv("FAKEGPU_CC");
  return v ? atoi(v) : 90;
}
int trace(void) {
  static int t = -1;
  if (t < 0) {
    const char *v = getenv("FAKEGPU_TRACE");
    t = v ? atoi(v) : 0;
  }
  return t;
}
__thread int current_device;
__thread int last_error;
Counts counts;
EXPORT Counts *fakegpu_counts(void) { return &counts; }
int fail(int e) {
  if (e) last_error = e;
  return e;
}

EXPORT cudaError_t cudaGetDeviceCount(int *n) {
  *n = devices();
  return *n ? 0 : fail(cudaErrorNoDevice);
}
EXPORT cudaError_t cudaGetDevice(int *d) {
  *d = current_device;
  return devices() ? 0 : fail(cudaErrorNoDevice);
}
EXPORT cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= devices()) return fail(cudaErrorInvalidDevice);
  current_device = d;
  return 0;
}
void device_attribute(int *v, int a) {
  int h = capability() >= 90;
  *v = 0;
  switch (a) {
  case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
  case cudaDevAttrMaxBlockDimX:
  case cudaDevAttrMaxBlockDimY: *v = 1024; break;
  case cudaDevAttrMaxBlockDimZ: *v = 64; break;
  case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: *v = 65535; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
  case cudaDevAttrWarpSize: *v = 32; break;
  case cudaDevAttrMaxRegistersPerBlock: *v = 65536; break;
  case cudaDevAttrMultiProcessorCount: *v = h ? 132 : capability() == 86 ? 72 : 108; break;
  case cudaDevAttrComputeCapabilityMajor: *v = capability() / 10; break;
  case cudaDevAttrComputeCapabilityMinor: *v = capability() % 10; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *v = h ? 232448 : capability() == 80 ? 166912 : capability() == 75 ? 65536 : 101376;
    break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = h ? 233472 : 167936; break;
  case cudaDevAttrClockRate: *v = 1980000; break;
  case cudaDevAttrMemoryClockRate: *v = 2619000; break;
  case cudaDevAttrGlobalMemoryBusWidth: *v = 5120; break;
  case cudaDevAttrL2CacheSize: *v = 50 << 20; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
  case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrManagedMemory:
  case cudaDevAttrConcurrentManagedAccess:
  case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrMemoryPoolsSupported: *v = 1; break;
  case 102: *v = 1; break;
  }
}
EXPORT cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  device_attribute(v, a);
  return 0;
}
EXPORT cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int d) {
  if (d < 0 || d >= devices()) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  const char *n = getenv("FAKEGPU_NAME");
  strcpy(p->name, n ? n : "NVIDIA H100 80GB HBM3");
  memset(&p->uuid, 0x11 + d, 16);
  p->totalGlobalMem = capacity();
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->clockRate = 1980000;
  p->totalConstMem = 65536;
  p->major = capability() / 10;
  p->minor = capability() % 10;
  p->textureAlignment = 512;
  p->multiProcessorCount = capability() >= 90 ? 132 : 108;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryClockRate = 2619000;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 50 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->cooperativeLaunch = 1;
  int v;
  device_attribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerBlockOptin = v;
  p->maxBlocksPerMultiProcessor = 32;
  p->memoryPoolsSupported = 1;
  p->pciBusID = 1 + d;
  return 0;
}
EXPORT cudaError_t cudaDriverGetVersion(int *v) {
  *v = 13000;
  return 0;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = 12080;
  return 0;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d) {
  snprintf(s, n, "0000:%02X:00.0", d + 1);
  return 0;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *c, int a, int b) {
  *c = 1;
  return 0;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int d, unsigned f) { return 0; }
EXPORT cudaError_t cudaDeviceSynchronize(void) {
  counts.syncs++;
  return refuse_in_capture("cudaDeviceSynchronize");
}
EXPORT cudaError_t cudaGetLastError(void) {
  int e = last_error;
  last_error = 0;
  return e;
}
EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorName(cudaError_t e) {
  return e == 2     ? "cudaErrorMemoryAllocation"
         : e == 900 ? "cudaErrorStreamCaptureUnsupported"
         : e == 901 ? "cudaErrorStreamCaptureInvalidated"
         : e        ? "cudaErrorFake"
                    : "cudaSuccess";
}
EXPORT const char *cudaGetErrorString(cudaError_t e) {
  static __thread char s[64];
  switch ((int)e) {
  case 0: return "no error";
  case 2: return "out of memory";
  case 9: return "invalid configuration argument";
  case 1: return "invalid argument";
  case 100: return "no CUDA-capable device is detected";
  case 900: return "operation not permitted when stream is capturing";
  case 901: return "operation failed due to a previous error during capture";
  }
  snprintf(s, sizeof s, "fake CUDA error %d", e);
  return s;
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void *p) { return 0; }
EXPORT cudaError_t cudaProfilerStart(void) { return 0; }
EXPORT cudaError_t cudaProfilerStop(void) { return 0; }
static CUresult unsupported(void) {
  fprintf(stderr, "fakegpu: a driver function that is not there was called\n");
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *n, void **p, unsigned long long f,
                                           enum cudaDriverEntryPointQueryResult *q) {
  *p = dlsym(RTLD_DEFAULT, n);
  if (!*p) *p = (void *)unsupported;
  if (q) *q = cudaDriverEntryPointSuccess;
  return 0;
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *n, void **p, unsigned v, unsigned long long f,
                                                    enum cudaDriverEntryPointQueryResult *q) {
  return cudaGetDriverEntryPoint(n, p, f, q);
}

static int primary;
static __thread CUcontext context;
EXPORT CUresult cuInit(unsigned f) { return devices() ? 0 : CUDA_ERROR_NO_DEVICE; }
EXPORT CUresult cuDriverGetVersion(int *v) {
  *v = 13000;
  return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *d, int o) {
  *d = o;
  return o < devices() ? 0 : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetCount(int *n) {
  *n = devices();
  return 0;
}
EXPORT CUresult cuDeviceGetName(char *s, int n, CUdevice d) {
  const char *v = getenv("FAKEGPU_NAME");
  snprintf(s, n, "%s", v ? v : "NVIDIA H100 80GB HBM3");
  return 0;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *b, CUdevice d) {
  *b = capacity();
  return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  device_attribute(v, a);
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  primary = 1;
  *c = (CUcontext)(uintptr_t)(0x1000 + d);
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return 0; }
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *f, int *a) {
  *f = 0;
  *a = fakegpu_used(d) > 0;
  return 0;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = context ? context : (CUcontext)0x1000;
  return 0;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext c) {
  context = c;
  return 0;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *d) {
  *d = current_device;
  return 0;
}
EXPORT CUresult cuCtxSetLimit(CUlimit l, size_t v) { return 0; }
EXPORT CUresult cuCtxGetLimit(size_t *v, CUlimit l) {
  *v = 1 << 20;
  return 0;
}
EXPORT CUresult cuGetErrorString(CUresult e, const char **s) {
  *s = cudaGetErrorString(e);
  return 0;
}
EXPORT CUresult cuGetErrorName(CUresult e, const char **s) {
  *s = "CUDA_ERROR_FAKE";
  return 0;
}
