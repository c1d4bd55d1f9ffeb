"""A check that raises: the machine's doing, or our own mistake, of which nothing follows for the machine."""

from __future__ import annotations

import traceback
from pathlib import Path

from loradock.env_check.base import Finding, error, warning

OF_THE_MACHINE = (OSError, ImportError, MemoryError)
DEVICE_WORDS = (
    "CUDA",
    "CUBLAS",
    "cuBLAS",
    "CUDNN",
    "cuDNN",
    "NCCL",
    "CUSPARSE",
    "CUSOLVER",
    "Triton Error",
    "DefaultCPUAllocator",
)


def broken(failure: Exception, *, where: str, remedy: str) -> Finding:
    """The finding for what a check raised; `where` is "" or a place as " on cuda:0", `remedy` makes a report.

    An error where a library, a file or a device failed: the run would fail at it, too. Anything else is a mistake in
    the check or a case that nobody foresaw: it proves nothing, and stops no run.
    """
    frame = traceback.extract_tb(failure.__traceback__)[-1]
    first = (str(failure).strip().splitlines() or [""])[0][:200]
    at = f"{Path(frame.filename).name}:{frame.lineno}: {type(failure).__name__}: {first}"
    if is_of_the_machine(failure):
        return error(f"the check failed{where} at {at}", remedy=remedy)
    return warning(f"undecided{where}: the check itself failed at {at}; please report it", remedy=remedy)


def is_of_the_machine(failure: Exception) -> bool:
    """True where files, libraries, memory or a device failed."""
    if isinstance(failure, OF_THE_MACHINE):
        return True
    return isinstance(failure, RuntimeError) and any(word in str(failure) for word in DEVICE_WORDS)
