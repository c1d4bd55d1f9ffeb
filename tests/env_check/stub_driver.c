/* A driver library for tests: NVML and libcuda of a machine with one Tesla T4, which answer few questions.
   STUB_FAULTS names what is wrong with it. */
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define IS_LOST 15
#define DRIVER_NOT_LOADED 9
#define INSUFFICIENT_SIZE 7

static int has(const char *fault) {
    const char *all = getenv("STUB_FAULTS");
    return all && strstr(all, fault);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return has("init") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == IS_LOST ? "GPU is lost" : "another error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, has("old") ? "470.86" : "550.127.05", length);
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = has("pair") ? 2 : 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
    *card = (void *)(size_t)(index + 1);
    if (has("denied")) return NO_PERMISSION;
    return has("lost") || (has("pair") && index == 1) ? IS_LOST : SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *card, unsigned long long *memory) {
    (void)card;
    if (has("unified")) return NOT_SUPPORTED;
    if (has("hangs")) return IS_LOST;
    memory[0] = 15ull << 30;
    memory[2] = has("memory") ? 4ull << 30 : 0;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}
int nvmlDeviceGetName(void *card, char *text, unsigned length) { (void)card; strncpy(text, "Tesla T4", length); return SUCCESS; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned length) { (void)card; strncpy(text, "GPU-stub", length); return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) { (void)card; *major = 7; *minor = 5; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *card, unsigned *milliwatts) { (void)card; *milliwatts = 70000; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(void *card, unsigned *milliwatts) {
    (void)card;
    *milliwatts = has("power") ? 60000 : 70000;
    return SUCCESS;
}
/* The older name alone, as drivers before 535 have it. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *reasons) {
    (void)card;
    *reasons = 0x48;
    return has("throttle") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(void *card, int type, int counter, unsigned long long *count) {
    (void)card;
    *count = type == 1 && counter == 0;
    return has("ecc") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxPcieLinkWidth(void *card, unsigned *width) { (void)card; *width = 16; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(void *card, unsigned *width) { (void)card; *width = has("pcie") ? 1 : 16; return SUCCESS; }
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, struct process *processes) {
    (void)card;
    unsigned room = *count;
    *count = has("memory") ? 1 : 0;
    if (*count == 0) return SUCCESS;
    if (room == 0 || processes == NULL) return INSUFFICIENT_SIZE;
    processes[0] = (struct process){4711, 4ull << 30, 0, 0};
    return SUCCESS;
}
int cuDriverGetVersion(int *version) { *version = has("old") ? 11040 : 12040; return 0; }
