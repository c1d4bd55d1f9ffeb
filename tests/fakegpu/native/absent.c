/* Entry points that torch looks up and never needs here; declared by no header, since their arguments do not matter. */
#include <stdio.h>

#define NOT(name)                                                                                                      \
  __attribute__((visibility("default"))) int name() {                                                                  \
    fprintf(stderr, "fakegpu: " #name " is not there\n");                                                              \
    return 801;                                                                                                        \
  }
// clang-format off
NOT(cudaIpcGetMemHandle)
NOT(cudaIpcOpenMemHandle)
NOT(cudaIpcGetEventHandle)
NOT(cudaIpcOpenEventHandle)
NOT(cudaMallocAsync)
NOT(cudaFreeAsync)
NOT(cudaDeviceGetDefaultMemPool)
NOT(cudaMemPoolGetAttribute)
NOT(cudaMemPoolSetAttribute)
NOT(cudaMemPoolSetAccess)
NOT(cudaMemPoolTrimTo)
NOT(cuTensorMapEncodeTiled)
// clang-format on
