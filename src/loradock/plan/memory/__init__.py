"""Bytes that a run needs on its device, by component: `peft` and `fast` model a backend each. Pure arithmetic."""

from loradock.plan.memory import fast, peft
from loradock.plan.memory.base import (
    CPU_RUNTIME_BYTES,
    LOADER_MOST_WORKERS,
    LOADER_PREFETCH,
    RUNTIME_BYTES,
    loader_workers,
    weight_bytes,
)

__all__ = [
    "CPU_RUNTIME_BYTES",
    "LOADER_MOST_WORKERS",
    "LOADER_PREFETCH",
    "RUNTIME_BYTES",
    "fast",
    "loader_workers",
    "peft",
    "weight_bytes",
]
