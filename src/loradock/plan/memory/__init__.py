"""Bytes that a run needs on its device, by component: `trl` and `fast` model an engine each. Pure arithmetic."""

from loradock.plan.memory import fast, trl
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
    "trl",
    "weight_bytes",
]
