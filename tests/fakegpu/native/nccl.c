/* NCCL without devices: processes of one machine meet in a file under /dev/shm, and each operation is two waits and a
 * sum. Preloaded. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define EXPORT __attribute__((visibility("default")))
#define SLOT (64u << 20)
#define RANKS 8
typedef struct {
  volatile uint64_t arrived[RANKS];
  volatile int aborted;
} Head;
typedef struct {
  int rank, size, device;
  Head *head;
  char *slots;
  uint64_t turn;
  int is_aborted;
} Comm;
typedef struct {
  char internal[128];
} Id;
EXPORT int ncclGetVersion(int *v) {
  *v = 22705;
  return 0;
}
EXPORT const char *ncclGetErrorString(int r) { return r ? "fake NCCL error" : "no error"; }
EXPORT const char *ncclGetLastError(void *c) { return "fake NCCL"; }
EXPORT int ncclGetUniqueId(Id *id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, 64, "/dev/shm/fakegpu-nccl-%d-%ld", getpid(), (long)time(0) * 1000 + rand() % 1000);
  return 0;
}
static int wait_all(Comm *c) {
  c->turn++;
  __sync_synchronize();
  c->head->arrived[c->rank] = c->turn;
  for (int i = 0; i < c->size; i++)
    while (c->head->arrived[i] < c->turn) {
      if (c->head->aborted || c->is_aborted) return 6;
      usleep(100);
    }
  __sync_synchronize();
  return 0;
}
EXPORT int ncclCommInitRankConfig(Comm **out, int size, Id id, int rank, void *config) {
  Comm *c = calloc(1, sizeof *c);
  c->rank = rank;
  c->size = size;
  size_t n = sizeof(Head) + (size_t)SLOT * size;
  int fd = -1;
  for (int i = 0; i < 10 && fd < 0; i++) fd = open(id.internal, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, n)) return 2;
  char *m = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  c->head = (Head *)m;
  c->slots = m + sizeof(Head);
  *out = c;
  int error = wait_all(c);
  unlink(id.internal); /* every rank has it by now, and what is killed leaves no file */
  return error;
}
EXPORT int ncclCommInitRank(Comm **out, int size, Id id, int rank) {
  return ncclCommInitRankConfig(out, size, id, rank, 0);
}
EXPORT int ncclCommInitRankScalable(Comm **out, int size, int rank, int n, Id *ids, void *config) {
  return ncclCommInitRankConfig(out, size, ids[0], rank, config);
}
EXPORT int ncclCommFinalize(Comm *c) { return 0; }
EXPORT int ncclCommDestroy(Comm *c) { return 0; }
EXPORT int ncclCommAbort(Comm *c) {
  c->is_aborted = 1;
  return 0;
}
EXPORT int ncclCommGetAsyncError(Comm *c, int *e) {
  *e = 0;
  return 0;
}
EXPORT int ncclCommCount(Comm *c, int *n) {
  *n = c->size;
  return 0;
}
EXPORT int ncclCommCuDevice(Comm *c, int *n) {
  *n = c->device;
  return 0;
}
EXPORT int ncclCommUserRank(Comm *c, int *n) {
  *n = c->rank;
  return 0;
}
EXPORT int ncclCommRegister(void *c, void *b, size_t n, void **h) {
  *h = 0;
  return 0;
}
EXPORT int ncclCommDeregister(void *c, void *h) { return 0; }
EXPORT int ncclGroupStart(void) { return 0; }
EXPORT int ncclGroupEnd(void) { return 0; }
EXPORT int ncclGroupSimulateEnd(void *i) { return 0; }
static size_t width(int t) {
  static const int w[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return w[t];
}
static float from_bfloat16(uint16_t x) {
  uint32_t u = (uint32_t)x << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static uint16_t to_bfloat16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
enum Operation { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE }; /* NCCL's own numbers */
#define SAME(x) (x)
/* Reduce n values of type T over the ranks, accumulated as A: half precision is rounded once, at the end. */
#define FOLD(T, A, READ, WRITE)                                                                                        \
  for (size_t i = 0; i < n; i++) {                                                                                     \
    A a = 0;                                                                                                           \
    for (int r = 0; r < c->size; r++) {                                                                                \
      A x = READ(((T *)(c->slots + (size_t)SLOT * r))[i]);                                                             \
      int is_taken = op == MAXIMUM ? x > a : x < a;                                                                    \
      a = r == 0 ? x : op == SUM || op == AVERAGE ? a + x : op == PRODUCT ? a * x : is_taken ? x : a;                  \
    }                                                                                                                  \
    ((T *)out)[i] = WRITE(op == AVERAGE ? a / c->size : a);                                                            \
  }
static void fold(Comm *c, void *out, size_t n, int t, int op) {
  switch (t) {
  case 0: FOLD(int8_t, int8_t, SAME, SAME) break;
  case 1: FOLD(uint8_t, uint8_t, SAME, SAME) break;
  case 2: FOLD(int32_t, int32_t, SAME, SAME) break;
  case 3: FOLD(uint32_t, uint32_t, SAME, SAME) break;
  case 4: FOLD(int64_t, int64_t, SAME, SAME) break;
  case 5: FOLD(uint64_t, uint64_t, SAME, SAME) break;
  case 6: FOLD(_Float16, float, (float), (_Float16)) break;
  case 7: FOLD(float, float, SAME, SAME) break;
  case 8: FOLD(double, double, SAME, SAME) break;
  case 9: FOLD(uint16_t, float, from_bfloat16, to_bfloat16) break;
  }
}
static size_t least(size_t a, size_t b) { return a < b ? a : b; }
EXPORT int ncclAllReduce(const void *in, void *out, size_t n, int t, int op, Comm *c, void *s) {
  for (size_t o = 0; o < n || o == 0; o += SLOT / 8) {
    size_t m = least(SLOT / 8, n - o), w = width(t);
    memcpy(c->slots + (size_t)SLOT * c->rank, (char *)in + o * w, m * w);
    if (wait_all(c)) return 6;
    fold(c, (char *)out + o * w, m, t, op);
    if (wait_all(c)) return 6;
  }
  return 0;
}
EXPORT int ncclBroadcast(const void *in, void *out, size_t n, int t, int root, Comm *c, void *s) {
  for (size_t o = 0; o < n || o == 0; o += SLOT / 8) {
    size_t m = least(SLOT / 8, n - o), w = width(t);
    if (c->rank == root) memcpy(c->slots, (char *)in + o * w, m * w);
    if (wait_all(c)) return 6;
    memmove((char *)out + o * w, c->slots, m * w);
    if (wait_all(c)) return 6;
  }
  return 0;
}
EXPORT int ncclBcast(void *b, size_t n, int t, int root, Comm *c, void *s) {
  return ncclBroadcast(b, b, n, t, root, c, s);
}
EXPORT int ncclReduce(const void *in, void *out, size_t n, int t, int op, int root, Comm *c, void *s) {
  void *tmp = malloc(n * width(t) + 8);
  int e = ncclAllReduce(in, tmp, n, t, op, c, s);
  if (c->rank == root) memcpy(out, tmp, n * width(t));
  free(tmp);
  return e;
}
EXPORT int ncclAllGather(const void *in, void *out, size_t n, int t, Comm *c, void *s) {
  size_t w = width(t);
  for (size_t o = 0; o < n || o == 0; o += SLOT / 8) {
    size_t m = least(SLOT / 8, n - o);
    memcpy(c->slots + (size_t)SLOT * c->rank, (char *)in + o * w, m * w);
    if (wait_all(c)) return 6;
    for (int r = 0; r < c->size; r++) memcpy((char *)out + (r * n + o) * w, c->slots + (size_t)SLOT * r, m * w);
    if (wait_all(c)) return 6;
  }
  return 0;
}
EXPORT int ncclReduceScatter(const void *in, void *out, size_t n, int t, int op, Comm *c, void *s) {
  size_t w = width(t);
  char *tmp = malloc(n * c->size * w + 8);
  int e = ncclAllReduce(in, tmp, n * c->size, t, op, c, s);
  memcpy(out, tmp + c->rank * n * w, n * w);
  free(tmp);
  return e;
}
EXPORT int ncclCommSplit(Comm *c, int color, int key, Comm **out, void *cfg) {
  *out = c;
  return 0;
}
EXPORT int ncclSend() {
  fprintf(stderr, "fakegpu: ncclSend\n");
  return 3;
}
EXPORT int ncclRecv() {
  fprintf(stderr, "fakegpu: ncclRecv\n");
  return 3;
}
EXPORT int ncclRedOpCreatePreMulSum() { return 3; }
EXPORT int ncclRedOpDestroy() { return 0; }
EXPORT int ncclMemAlloc(void **p, size_t n) { return 3; }
EXPORT int ncclMemFree(void *p) { return 0; }
