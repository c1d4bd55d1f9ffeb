/* NVML without a device: what loradock, torch and nvidia-ml-py ask first. What is missing here is answered "function
 * not found". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dlfcn.h>
typedef int Result;
typedef void *Device;
static int count(void) {
  const char *v = getenv("FAKEGPU_DEVICES");
  return v ? atoi(v) : 1;
}
static unsigned long long total(void) {
  const char *v = getenv("FAKEGPU_NVML_MEMORY");
  if (!v) v = getenv("FAKEGPU_MEMORY");
  return v ? strtoull(v, 0, 10) : 79ull << 30;
}
static unsigned long long taken(int d) {
  size_t (*f)(int) = dlsym(RTLD_DEFAULT, "fakegpu_used");
  return f ? f(d) : 0;
}
static int capability(void) {
  const char *v = getenv("FAKEGPU_CC");
  return v ? atoi(v) : 90;
}
static int of(Device h) { return (int)(long)h - 1; }
Result nvmlInit_v2(void) { return 0; }
Result nvmlInitWithFlags(unsigned f) { return 0; }
Result nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Result r) { return "fake NVML error"; }
Result nvmlSystemGetDriverVersion(char *s, unsigned n) {
  snprintf(s, n, "580.159.04");
  return 0;
}
Result nvmlSystemGetNVMLVersion(char *s, unsigned n) {
  snprintf(s, n, "13.580.159.04");
  return 0;
}
Result nvmlSystemGetCudaDriverVersion_v2(int *v) {
  *v = 13000;
  return 0;
}
Result nvmlDeviceGetCount_v2(unsigned *n) {
  *n = count();
  return 0;
}
Result nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *h) {
  if ((int)i >= count()) return 2;
  *h = (Device)(long)(i + 1);
  return 0;
}
Result nvmlDeviceGetHandleByPciBusId_v2(const char *b, Device *h) {
  *h = (Device)1;
  return 0;
}
Result nvmlDeviceGetIndex(Device h, unsigned *i) {
  *i = of(h);
  return 0;
}
typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} Memory2;
Result nvmlDeviceGetMemoryInfo(Device h, Memory *m) {
  m->total = total();
  m->used = taken(of(h));
  m->free = m->total - m->used;
  return 0;
}
Result nvmlDeviceGetMemoryInfo_v2(Device h, Memory2 *m) {
  m->total = total();
  m->reserved = 0;
  m->used = taken(of(h));
  m->free = m->total - m->used;
  return 0;
}
Result nvmlDeviceGetName(Device h, char *s, unsigned n) {
  const char *v = getenv("FAKEGPU_NAME");
  snprintf(s, n, "%s", v ? v : "NVIDIA H100 80GB HBM3");
  return 0;
}
Result nvmlDeviceGetUUID(Device h, char *s, unsigned n) {
  snprintf(s, n, "GPU-1111111%d-2222-3333-4444-555555555555", of(h));
  return 0;
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, sub;
  char busId[32];
} Pci;
Result nvmlDeviceGetPciInfo_v3(Device h, Pci *p) {
  memset(p, 0, sizeof *p);
  p->bus = of(h) + 1;
  p->id = 0x233010de;
  snprintf(p->busId, 32, "00000000:%02X:00.0", of(h) + 1);
  snprintf(p->legacy, 16, "0000:%02X:00.0", of(h) + 1);
  return 0;
}
Result nvmlDeviceGetCudaComputeCapability(Device h, int *a, int *b) {
  *a = capability() / 10;
  *b = capability() % 10;
  return 0;
}
Result nvmlDeviceGetTemperature(Device h, int s, unsigned *t) {
  *t = 41;
  return 0;
}
Result nvmlDeviceGetPersistenceMode(Device h, int *m) {
  *m = 1;
  return 0;
}
Result nvmlDeviceGetCurrentClocksEventReasons(Device h, unsigned long long *r) {
  *r = 0;
  return 0;
}
Result nvmlDeviceGetClockInfo(Device h, int k, unsigned *c) {
  *c = k == 2 ? 2619 : 1980;
  return 0;
}
Result nvmlDeviceGetMaxClockInfo(Device h, int k, unsigned *c) {
  *c = k == 2 ? 2619 : 1980;
  return 0;
}
Result nvmlDeviceGetPowerManagementLimit(Device h, unsigned *w) {
  *w = 700000;
  return 0;
}
Result nvmlDeviceGetPowerManagementDefaultLimit(Device h, unsigned *w) {
  *w = 700000;
  return 0;
}
Result nvmlDeviceGetEnforcedPowerLimit(Device h, unsigned *w) {
  *w = 700000;
  return 0;
}
Result nvmlDeviceGetPowerUsage(Device h, unsigned *w) {
  *w = 350000;
  return 0;
}
Result nvmlDeviceGetEccMode(Device h, int *a, int *b) {
  *a = *b = 1;
  return 0;
}
Result nvmlDeviceGetTotalEccErrors(Device h, int a, int b, unsigned long long *n) {
  *n = 0;
  return 0;
}
Result nvmlDeviceGetCurrPcieLinkGeneration(Device h, unsigned *v) {
  *v = 5;
  return 0;
}
Result nvmlDeviceGetMaxPcieLinkGeneration(Device h, unsigned *v) {
  *v = 5;
  return 0;
}
Result nvmlDeviceGetCurrPcieLinkWidth(Device h, unsigned *v) {
  *v = 16;
  return 0;
}
Result nvmlDeviceGetMaxPcieLinkWidth(Device h, unsigned *v) {
  *v = 16;
  return 0;
}
typedef struct {
  unsigned gpu, memory;
} Utilization;
Result nvmlDeviceGetUtilizationRates(Device h, Utilization *u) {
  u->gpu = 93;
  u->memory = 50;
  return 0;
}
Result nvmlDeviceGetComputeRunningProcesses_v3(Device h, unsigned *n, void *p) {
  *n = 0;
  return 0;
}
Result nvmlDeviceGetGraphicsRunningProcesses_v3(Device h, unsigned *n, void *p) {
  *n = 0;
  return 0;
}

Result nvmlDeviceGetNvLinkRemoteDeviceType(Device h, unsigned l, int *t) { return 3; }
Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device h, unsigned l, Pci *p) { return 3; }
Result nvmlDeviceGetComputeRunningProcesses(Device h, unsigned *n, void *p) {
  *n = 0;
  return 0;
}
Result nvmlDeviceGetComputeRunningProcesses_v2(Device h, unsigned *n, void *p) {
  *n = 0;
  return 0;
}
Result nvmlDeviceGetGpuFabricInfoV(Device h, void *i) { return 3; }
