"""Bytes that a run needs on its device, by component: `trl` and `fast` model an engine each. Pure arithmetic."""

from loradock.memory import fast, trl
from loradock.memory.base import LOADER_MOST_WORKERS, LOADER_PREFETCH, loader_workers, weight_bytes

__all__ = ["LOADER_MOST_WORKERS", "LOADER_PREFETCH", "fast", "loader_workers", "trl", "weight_bytes"]
