"""Kubernetes' quantities (`96Gi`, `500m`, `1e3`): numbers of them, and bytes as text."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from loradock.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
MOST_BYTES = (1 << 63) - 1
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def number(text: str) -> Decimal | None:
    """The number that a quantity stands for, in its unit (cores, bytes, pieces); None where the text is none."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None:
        return None
    figure, unit, exponent = parts.groups()
    if unit in _BINARY:
        return Decimal(figure) * 1024 ** _BINARY[unit]
    return Decimal(figure).scaleb(int(exponent) if exponent else _DECIMAL[unit or ""])


def shown(size_bytes: int) -> str:
    """Whole Gi where that loses nothing, else Mi, rounded up."""
    if size_bytes % GIB == 0 and size_bytes:
        return f"{size_bytes // GIB}Gi"
    return f"{math.ceil(size_bytes / MIB)}Mi"


def read(text: str) -> int:
    """Bytes of a quantity. UsageError for anything else, as a part of a byte."""
    size = number(text)
    if size is None or not 1 <= size <= MOST_BYTES or size != size.to_integral_value():
        raise UsageError(f"{text!r} is not a quantity of bytes", hint="64Gi, 500Mi or 2Ti")
    return int(size)


def up_to_gib(size_bytes: float) -> int:
    """Bytes rounded up to whole GiB."""
    return math.ceil(size_bytes / GIB) * GIB
