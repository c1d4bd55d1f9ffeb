"""Kubernetes' quantities of memory and storage: bytes as text (`96Gi`) and back."""

from __future__ import annotations

import math
import re

from loradock.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGT", 1)
}
QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?", flags=re.ASCII)


def shown(size_bytes: int) -> str:
    """Whole Gi where that loses nothing, else Mi, rounded up."""
    if size_bytes % GIB == 0 and size_bytes:
        return f"{size_bytes // GIB}Gi"
    return f"{math.ceil(size_bytes / MIB)}Mi"


def read(text: str) -> int:
    """Bytes of a quantity. UsageError for anything else."""
    found = QUANTITY.fullmatch(text)
    if not found or int(found[1]) == 0:
        raise UsageError(f"{text!r} is no quantity of bytes", hint="64Gi, 500Mi or 2Ti")
    return int(found[1]) * SUFFIXES[found[2] or ""]


def up_to_gib(size_bytes: float) -> int:
    """Bytes rounded up to whole GiB."""
    return math.ceil(size_bytes / GIB) * GIB
