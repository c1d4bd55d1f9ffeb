"""Environment variables that libraries read as numbers while they are imported: one that is none stops the import.

What comes of it names neither the variable nor its value's place, so it is looked for before anything is imported.
"""

from __future__ import annotations

import os

from loradock.errors import EnvironmentUnfit, Problem

TORCH = (
    "AOTINDUCTOR_REPRO_LEVEL", "COMPILE_STROBELIGHT_MAX_PROFILE_TIME", "COMPILE_STROBELIGHT_MAX_STACK_LENGTH",
    "INDUCTOR_PROVENANCE", "TORCHDYNAMO_REPRO_LEVEL", "TORCHDYNAMO_TRANSLATION_VALIDATION_TIMEOUT",
    "TORCHINDUCTOR_COLLECTIVE_BENCHMARK_NRUNS", "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCHINDUCTOR_COORDINATE_DESCENT_RADIUS", "TORCHINDUCTOR_CPP_GEMM_MAX_K_SLICES",
    "TORCHINDUCTOR_CPP_MAX_HORIZONTAL_FUSION_SIZE", "TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE",
    "TORCHINDUCTOR_DECOMPOSE_K_THRESHOLD", "TORCHINDUCTOR_FILE_LOCK_TIMEOUT", "TORCHINDUCTOR_MIN_NUM_SPLIT",
    "TORCHINDUCTOR_MULTI_KERNEL", "TORCHINDUCTOR_NUM_DECOMPOSE_K_SPLITS", "TORCH_AUTOTUNE_REP",
    "TORCH_AUTOTUNE_WARMUP", "TORCH_COMPILE_DEBUG", "TORCH_SPARSE_BSR_SCATTER_MM_LRU_CACHE_SIZE",
)  # fmt: skip
NUMBERS: dict[str, tuple[str, type[int | float]]] = {
    **dict.fromkeys(TORCH, ("torch", int)),
    "COMPILE_STROBELIGHT_SAMPLE_RATE": ("torch", float),
    "TORCHINDUCTOR_COLLECTIVE_BENCHMARK_TIMEOUT": ("torch", float),
    "HF_HUB_DOWNLOAD_TIMEOUT": ("huggingface_hub", int),
    "HF_HUB_ETAG_TIMEOUT": ("huggingface_hub", int),
    "HF_DATASETS_IN_MEMORY_MAX_SIZE": ("datasets", float),
    **{f"TQDM_{name}": ("tqdm", int) for name in ("INITIAL", "NCOLS", "NROWS", "POSITION", "UNIT_DIVISOR")},
    **{
        f"TQDM_{name}": ("tqdm", float)
        for name in ("DELAY", "MAXINTERVAL", "MININTERVAL", "MINITERS", "SMOOTHING", "TOTAL")
    },
}
"""{variable: (the package that reads it, as what)}; a test compares it with the sources of the locked packages."""


def require_numbers() -> None:
    """EnvironmentUnfit with each variable that must be a number and is none."""
    problems: list[Problem] = []
    for name, (package, kind) in NUMBERS.items():
        value = os.environ.get(name)
        if value is None:
            continue
        try:
            kind(value)
        except ValueError:
            kind_text = "a whole number" if kind is int else "a number"
            what = f"{name} must be {kind_text}, not {value!r}: {package} cannot be imported with it"
            problems.append(Problem(what=what, hint=f"unset {name}"))
    if problems:
        raise EnvironmentUnfit("the environment has variables that libraries cannot read", problems=problems)
