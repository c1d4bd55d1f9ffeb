/* Memory of the device: the host's own, with a capacity; copies; and the driver's virtual memory (expandable
 * segments). */
#include "stand_in.h"

#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
void take_lock(void) { pthread_mutex_lock(&lock); }
void give_lock(void) { pthread_mutex_unlock(&lock); }
int is_left_alone(size_t n) { /* launches that do nothing: large memory that nobody writes takes none */
  static int t = -1;
  if (t < 0) {
    const char *v = getenv("FAKEGPU_COMPUTE");
    t = v && *v == '0';
  }
  return t && n > (1 << 20);
}
static size_t used[MOST_DEVICES]; /* by this process, without its context */
static size_t bytes_of(const char *name) {
  const char *v = getenv(name);
  return v ? strtoull(v, 0, 10) : 0;
}
/* Bytes in use on a device, by another process, too; asked anew each time, since a forked process may be told
 * otherwise. */
EXPORT size_t fakegpu_used(int d) { return used[d] + bytes_of("FAKEGPU_TAKEN") + bytes_of("FAKEGPU_CONTEXT"); }
static size_t left(int d) {
  size_t in_use = fakegpu_used(d), whole = capacity();
  return in_use < whole ? whole - in_use : 0;
}

static Block *blocks;
static size_t n_blocks, cap_blocks;
Block *block_of(const void *p) {
  for (size_t i = n_blocks; i-- > 0;)
    if ((char *)p >= blocks[i].p && (char *)p < blocks[i].p + blocks[i].n) return &blocks[i];
  return 0;
}
static void add_block(void *p, size_t n, int kind) {
  if (n_blocks == cap_blocks) {
    cap_blocks = cap_blocks ? 2 * cap_blocks : 64;
    blocks = realloc(blocks, cap_blocks * sizeof *blocks);
  }
  blocks[n_blocks++] = (Block){p, n, kind, current_device};
}
EXPORT int fakegpu_kind(const void *p) {
  LOCK;
  Block *b = block_of(p);
  int k = b ? b->kind : -1;
  UNLOCK;
  return k;
}

static int take_bytes(size_t n) {
  LOCK;
  if (n > left(current_device)) {
    UNLOCK;
    return cudaErrorMemoryAllocation;
  }
  used[current_device] += n;
  UNLOCK;
  return 0;
}
/* Fresh memory is all ones, NaN in floats: what is read before it was written shows. */
static void poison(void *p, size_t n) {
  if (getenv("FAKEGPU_POISON")) memset(p, 0xFF, n);
}
static size_t page(size_t n) { return (n + 4095) & ~(size_t)4095; }
EXPORT cudaError_t cudaMalloc(void **p, size_t n) {
  counts.mallocs++;
  int e = refuse_in_capture("cudaMalloc");
  if (e) return e;
  *p = 0;
  if (!n) return 0;
  if (take_bytes(page(n))) return fail(cudaErrorMemoryAllocation);
  char *q = mmap(0, page(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (q == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  poison(q, n);
  LOCK;
  add_block(q, page(n), DEVICE);
  UNLOCK;
  *p = q;
  return 0;
}
static cudaError_t release(void *p) {
  LOCK;
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].p == p) {
      munmap(p, page(blocks[i].n));
      if (blocks[i].kind == DEVICE || blocks[i].kind == MANAGED) used[blocks[i].device] -= page(blocks[i].n);
      blocks[i] = blocks[--n_blocks];
      UNLOCK;
      return 0;
    }
  UNLOCK;
  return fail(cudaErrorInvalidValue);
}
EXPORT cudaError_t cudaFree(void *p) {
  int e = refuse_in_capture("cudaFree");
  return e ? e : p ? release(p) : 0;
}
EXPORT cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) {
  int e = refuse_in_capture("cudaHostAlloc");
  if (e) return e;
  char *q = mmap(0, page(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LOCK;
  add_block(q, page(n), PINNED);
  UNLOCK;
  *p = q;
  return 0;
}
EXPORT cudaError_t cudaFreeHost(void *p) {
  int e = refuse_in_capture("cudaFreeHost");
  return e ? e : p ? release(p) : 0;
}
EXPORT cudaError_t cudaHostRegister(void *p, size_t n, unsigned f) {
  LOCK;
  add_block(p, n, REGISTERED);
  UNLOCK;
  return 0;
}
EXPORT cudaError_t cudaHostUnregister(void *p) {
  LOCK;
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].p == p && blocks[i].kind == REGISTERED) {
      blocks[i] = blocks[--n_blocks];
      break;
    }
  UNLOCK;
  return 0;
}
EXPORT cudaError_t cudaMallocManaged(void **p, size_t n, unsigned f) {
  if (take_bytes(page(n))) return fail(cudaErrorMemoryAllocation);
  char *q = mmap(0, page(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LOCK;
  add_block(q, page(n), MANAGED);
  UNLOCK;
  *p = q;
  return 0;
}
EXPORT cudaError_t cudaMemPrefetchAsync(const void *p, size_t n, int d, cudaStream_t s) { return 0; }
EXPORT cudaError_t cudaMemGetInfo(size_t *free_, size_t *total) {
  *total = capacity();
  *free_ = left(current_device);
  return 0;
}
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  LOCK;
  Block *b = block_of(p);
  memset(a, 0, sizeof *a);
  a->type = !b                                       ? cudaMemoryTypeUnregistered
            : b->kind == DEVICE || b->kind == MAPPED ? cudaMemoryTypeDevice
            : b->kind == MANAGED                     ? cudaMemoryTypeManaged
                                                     : cudaMemoryTypeHost;
  a->device = b ? b->device : -2;
  a->devicePointer = b ? (void *)p : 0;
  a->hostPointer = b && a->type != cudaMemoryTypeDevice ? (void *)p : 0;
  UNLOCK;
  return 0;
}

/* Whether host memory is pageable: a device copies it after the host has staged it, and never while a stream is
 * captured. */
static int is_pageable(const void *p) {
  LOCK;
  int found = block_of(p) == 0;
  UNLOCK;
  return found;
}
EXPORT cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  counts.memcpys++;
  const void *host = k == cudaMemcpyHostToDevice ? s : k == cudaMemcpyDeviceToHost ? d : 0;
  if (host && is_pageable(host)) {
    counts.pageable_copies++;
    if (fakegpu_is_capturing(st)) return refuse_sync_in_capture(st, "cudaMemcpyAsync of pageable memory");
  }
  LOCK;
  Graph *g = graph_of(st);
  if (g) push_node(g, (Node){COPY, d, s, n});
  UNLOCK;
  if (!g && !(is_left_alone(n) && k == cudaMemcpyDeviceToDevice)) memmove(d, s, n);
  return 0;
}
EXPORT cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) {
  counts.memcpys++;
  counts.syncs++;
  int e = refuse_in_capture("cudaMemcpy");
  if (e) return e;
  memmove(d, s, n);
  return 0;
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, cudaStream_t st) {
  return cudaMemcpyAsync(d, s, n, cudaMemcpyDeviceToDevice, st);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h,
                                     enum cudaMemcpyKind k, cudaStream_t st) {
  for (size_t i = 0; i < h; i++) memmove((char *)d + i * dp, (char *)s + i * sp, w);
  return 0;
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void *sym, const void *s, size_t n, size_t o, enum cudaMemcpyKind k) {
  return 0;
}
EXPORT cudaError_t cudaMemset(void *d, int v, size_t n) {
  int e = refuse_in_capture("cudaMemset");
  if (e) return e;
  if (!is_left_alone(n)) memset(d, v, n);
  return 0;
}
EXPORT cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t st) {
  LOCK;
  Graph *g = graph_of(st);
  if (g) push_node(g, (Node){SET, d, 0, n, v});
  UNLOCK;
  if (!g && !is_left_alone(n)) memset(d, v, n);
  return 0;
}
EXPORT cudaError_t cudaGetSymbolAddress(void **p, const void *s) {
  static char zeros[1 << 16];
  *p = zeros;
  return 0;
}

EXPORT CUresult cuPointerGetAttribute(void *d, CUpointer_attribute a, CUdeviceptr p) {
  LOCK;
  Block *b = block_of((void *)p);
  UNLOCK;
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    *(CUdeviceptr *)d = p;
  else
    memset(d, 0, 4);
  return 0;
}

/* Virtual memory: expandable segments. */
typedef struct {
  size_t n;
  int device;
} Physical;
EXPORT CUresult cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *p,
                                              CUmemAllocationGranularity_flags f) {
  *g = 2 << 20;
  return 0;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t a, CUdeviceptr h, unsigned long long f) {
  char *q = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (q == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = (CUdeviceptr)q;
  LOCK;
  add_block(q, n, MAPPED);
  UNLOCK;
  return 0;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  LOCK;
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].p == (char *)p && blocks[i].kind == MAPPED) {
      blocks[i] = blocks[--n_blocks];
      break;
    }
  UNLOCK;
  munmap((void *)p, n);
  return 0;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p,
                            unsigned long long f) {
  if (take_bytes(n)) return CUDA_ERROR_OUT_OF_MEMORY;
  Physical *x = malloc(sizeof *x);
  x->n = n;
  x->device = current_device;
  *h = (CUmemGenericAllocationHandle)x;
  return 0;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  Physical *x = (Physical *)h;
  LOCK;
  used[x->device] -= x->n;
  UNLOCK;
  free(x);
  return 0;
}
EXPORT CUresult cuMemMap(CUdeviceptr p, size_t n, size_t o, CUmemGenericAllocationHandle h, unsigned long long f) {
  poison((void *)p, n);
  return 0;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  madvise((void *)p, n, MADV_DONTNEED);
  return 0;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t c) { return 0; }
