"""The preloaded library: what it counted, and which memory is the device's."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

LIBRARY = ctypes.CDLL("libcuda.so.1")
COMPUTES = os.environ.get("FAKEGPU_COMPUTE") != "0"
"""False: launches do nothing, so that sizes of real models can be tried; memory that nobody writes takes none."""
NATIVE = threading.local()
"""`is_running`: an operator's own CUDA code runs, whose launches compute nothing: the numbers are made after it."""
WARNED: set[str] = set()


class Counts(ctypes.Structure):
    """What has been done so far, in the order of `Counts` in native/stand_in.h."""

    NAMES = (
        "syncs launches cublas memcpys driver_launches mallocs capture_faults launch_faults pageable_copies"
    ).split()
    _fields_ = [(name, ctypes.c_uint64) for name in NAMES]

    def now(self) -> dict[str, int]:
        """Each count so far."""
        return {name: getattr(self, name) for name in self.NAMES}


LIBRARY.fakegpu_counts.restype = ctypes.POINTER(Counts)
COUNTS: Counts = LIBRARY.fakegpu_counts().contents
LIBRARY.fakegpu_kind.argtypes = [ctypes.c_void_p]
LIBRARY.fakegpu_capture_hook.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
LIBRARY.fakegpu_used.restype = ctypes.c_size_t


def is_native_running() -> bool:
    """Whether the numbers of what is launched now are made by the operator around it."""
    return getattr(NATIVE, "is_running", False)


class native_code:  # noqa: N801 -- a context manager, used as a function
    """Within, launches compute nothing."""

    def __enter__(self) -> bool:
        """Whether native code ran already."""
        self.before = is_native_running()
        NATIVE.is_running = True
        return self.before

    def __exit__(self, *_: object) -> None:
        NATIVE.is_running = self.before


def warn(text: str) -> None:
    """Say something once."""
    if text not in WARNED:
        WARNED.add(text)
        sys.stderr.write(f"fakegpu: {text}\n")
