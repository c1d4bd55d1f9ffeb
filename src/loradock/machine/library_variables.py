"""Environment variables by which libraries that compute choose a kernel, an order of sums, a precision or memory."""

from __future__ import annotations

from collections.abc import Mapping

ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""So that torch reserves little more than its tensors on a GPU; see docs/memory.md."""
ALLOCATOR_TODAY = "PYTORCH_ALLOC_CONF"
"""What torch calls it since 2.9; where both are set, the older one counts."""
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
PORTABLE = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
"""So that torch, oneDNN and MKL choose the kernels of x86-64-v3 on every CPU; read when they are imported."""
OF_THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""How many threads a library begins with; a training sets its own number (`plan.threads`)."""
READ_BY_LIBRARIES = (
    *ALLOCATOR, ALLOCATOR_TODAY, *DETERMINISTIC, *PORTABLE, *OF_THREADS,
    "CUDA_LAUNCH_BLOCKING", "MKL_ENABLE_INSTRUCTIONS", "NCCL_ALGO", "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE", "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TRITON_F32_DEFAULT",
)  # fmt: skip


def of_determinism(asked: bool | str) -> dict[str, str]:
    """What a training sets for `deterministic`, in the place of what the environment says."""
    return (DETERMINISTIC if asked else {}) | (PORTABLE if asked == "portable" else {})


def of_allocator(variables: Mapping[str, str]) -> dict[str, str]:
    """What a training sets for torch's allocator, unless the environment says something about it."""
    return {} if {ALLOCATOR_TODAY, *ALLOCATOR} & variables.keys() else ALLOCATOR


def of_a_training(variables: Mapping[str, str], *, deterministic: bool | str) -> dict[str, str]:
    """The variables as a training that is started here has them."""
    return {**variables, **of_allocator(variables), **of_determinism(deterministic)}


def recorded(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of READ_BY_LIBRARIES that are set."""
    return {name: variables[name] for name in READ_BY_LIBRARIES if name in variables}


def in_a_training(variables: Mapping[str, str], *, deterministic: bool | str) -> dict[str, str]:
    """What would be recorded of a training that is started here."""
    return recorded(of_a_training(variables, deterministic=deterministic))
