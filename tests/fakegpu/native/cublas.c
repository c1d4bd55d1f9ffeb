/* cuBLAS' entry points, which compute nothing: the numbers come from the operator that called
 * (gpu_on_cpu/operators.py). */
#include "stand_in.h"

typedef int cublasStatus_t;
typedef void *cublasHandle_t, *cublasLtHandle_t, *cublasLtMatmulDesc_t, *cublasLtMatrixLayout_t,
    *cublasLtMatmulPreference_t;
typedef int cublasMath_t, cublasPointerMode_t, cublasComputeType_t;
#define CUBLAS_STATUS_SUCCESS 0
typedef struct {
  uint64_t algo[8];
  size_t workspace;
  cublasStatus_t state;
  float waves;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#define BLAS(name)                                                                                                     \
  EXPORT cublasStatus_t name() {                                                                                       \
    counts.cublas++;                                                                                                   \
    return CUBLAS_STATUS_SUCCESS;                                                                                      \
  }
EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *h) {
  *h = (cublasHandle_t)calloc(1, 64);
  return 0;
}
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t h) { return 0; }
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) { return 0; }
EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *w, size_t n) { return 0; }
EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t m) {
  ((int *)h)[0] = m;
  return 0;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *m) {
  *m = ((int *)h)[0];
  return 0;
}
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t m) {
  ((int *)h)[1] = m;
  return 0;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *m) {
  *m = ((int *)h)[1];
  return 0;
}
// clang-format off
BLAS(cublasGemmEx)
BLAS(cublasSgemm_v2)
BLAS(cublasDgemm_v2)
BLAS(cublasSgemmEx)
BLAS(cublasGemmStridedBatchedEx)
BLAS(cublasSgemmStridedBatched)
BLAS(cublasDgemmStridedBatched)
BLAS(cublasSdot_v2)
BLAS(cublasDdot_v2)
BLAS(cublasDotEx)
BLAS(cublasSgemv_v2)
BLAS(cublasDgemv_v2)
BLAS(cublasStrsm_v2)
BLAS(cublasDtrsm_v2)
BLAS(cublasLtMatmul)
// clang-format on

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
  *h = (cublasLtHandle_t)calloc(1, 64);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c, cudaDataType_t t) {
  *d = calloc(1, 64);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  free(d);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute() { return 0; }
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *d, cudaDataType t, uint64_t r, uint64_t c,
                                                 int64_t l) {
  *d = calloc(1, 64);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t d) {
  free(d);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute() { return 0; }
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *d) {
  *d = calloc(1, 64);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t d) {
  free(d);
  return 0;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute() { return 0; }
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t o,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t p, int n,
                                                     cublasLtMatmulHeuristicResult_t *r, int *found) {
  memset(r, 0, sizeof *r);
  r->state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return 0;
}
