"""What a stage takes of the host's memory: this process's resident set before and after it, and its peak meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Of proc_pid_clear_refs(5): the peak becomes what is resident now."""


@contextmanager
def taken() -> Iterator[dict[str, int]]:
    """A dictionary that has `before_bytes`, `after_bytes` and `peak_bytes` at its end; empty where /proc tells nothing.

    Where the peak cannot be set back, it is that of the process until then.
    """
    memory: dict[str, int] = {}
    with suppress(OSError):  # some containers have it read-only
        CLEAR.write_text(RESET_PEAK)
    resident = resident_bytes().get("VmRSS")
    try:
        yield memory
    finally:
        current = resident_bytes()
        if resident is not None and current:
            memory |= {"before_bytes": resident, "after_bytes": current["VmRSS"], "peak_bytes": current["VmHWM"]}


def resident_bytes() -> dict[str, int]:
    """`VmRSS` and its peak `VmHWM` in bytes; empty where there is no /proc."""
    try:
        text = STATUS.read_text(encoding="utf-8")
    except OSError:
        return {}
    return {name: int(size) << 10 for name, size in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", text, re.MULTILINE)}
