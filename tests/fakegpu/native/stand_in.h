/* A CUDA driver and runtime without a device: memory is the host's, launches are counted and handed to a hook, and the
 * rules of a real device (capacity, launch limits, stream capture, pinned and pageable memory) are kept.
 * Preloaded: it stands before libcudart, libcublas and libcublasLt, whose other symbols stay those of the real ones. */
#pragma once
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <library_types.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_DEVICES 8
#define LOCK take_lock()
#define UNLOCK give_lock()

/* What has been done so far; gpu_on_cpu/native.py reads it. */
typedef struct {
  uint64_t syncs, launches, cublas, memcpys, driver_launches, mallocs, capture_faults, launch_faults, pageable_copies;
} Counts;
extern Counts counts;
extern __thread int current_device;
extern __thread int last_error;

/* device.c */
int devices(void);
size_t capacity(void);
int capability(void);
int trace(void);
int fail(int e);
void device_attribute(int *v, int a);

/* memory.c */
enum Kind { DEVICE, PINNED, REGISTERED, MANAGED, MAPPED }; /* gpu_on_cpu/memory.py knows these numbers */
typedef struct {
  char *p;
  size_t n;
  int kind, device;
} Block;
void take_lock(void);
void give_lock(void);
EXPORT size_t fakegpu_used(int d);
int is_left_alone(size_t n);
Block *block_of(const void *p);

/* streams.c */
enum NodeType { COPY, SET, HOOK, KERNEL };
typedef struct Node {
  int type;
  void *dst;
  const void *src;
  size_t n;
  int value;
  uint64_t id;
} Node;
typedef struct Graph {
  uint64_t id;
  Node *nodes;
  size_t n, cap;
} Graph;
typedef struct Stream {
  int device, priority, status;
  uint64_t id;
  int mode;
  pthread_t thread;
  Graph *graph;
  struct Stream *origin;
} Stream;
typedef struct {
  struct timespec t;
  int recorded;
  Stream *captured;
} Event;
typedef void (*Hook)(uint64_t id);
EXPORT int fakegpu_is_capturing(void *s);
Stream *real(void *s);
Graph *graph_of(void *s);
void push_node(Graph *g, Node n);
int refuse_in_capture(const char *what);
int refuse_sync_in_capture(void *st, const char *what);

/* launches.c */
typedef int (*LaunchHook)(const char *name, const void *func, const unsigned *grid, const unsigned *block, void **args,
                          size_t shared, void *stream, int is_driver);
