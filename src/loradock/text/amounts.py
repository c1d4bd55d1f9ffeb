"""Amounts as people read them: bytes in binary units, seconds, shares in percent, and counted things.

Rates of a device (GB/s, TFLOP/s) are decimal, as its maker publishes them, and are written where they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import islice

SIZES = ((1 << 30, 2, "GiB"), (1 << 20, 1, "MiB"), (1 << 10, 0, "KiB"))
"""Bytes of a unit, and the digits that are shown."""
TIMES = (
    (2 * 86400.0, 86400.0, "d"), (2 * 3600.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"),
    (1e-6, 1e-6, "us"),
)  # fmt: skip
"""Seconds from which a unit is counted in, and its own."""


def size_text(size_bytes: float, *, rounded: Callable[[float], int] = round) -> str:
    """Bytes: `1.34 GiB`, `12.0 MiB`, `40 KiB`."""
    length, digits, unit = next((size for size in SIZES if abs(size_bytes) >= size[0]), SIZES[-1])
    return f"{rounded(size_bytes * 10**digits / length) / 10**digits:,.{digits}f} {unit}"


def needed_text(size_bytes: float) -> str:
    """Bytes that something takes, rounded up: with as many as it says, it fits."""
    return size_text(size_bytes, rounded=math.ceil)


def free_text(size_bytes: float) -> str:
    """Bytes that are free, rounded down: no less is free than it says."""
    return size_text(size_bytes, rounded=math.floor)


def duration_text(seconds: float) -> str:
    """Seconds: `2.5 d`, `4.1 min`, `96.6 s`, `240 ms`."""
    length, unit = next(((length, unit) for least, length, unit in TIMES if abs(seconds) >= least), (1.0, "s"))
    figure = seconds / length
    return f"{figure:,.0f} {unit}" if abs(figure) >= 100 else f"{figure:.3g} {unit}"


def percent(share: float, *, digits: int = 0) -> str:
    """A share: `83 %`. It is called 0 or 100 % only where it is exactly that: others get as many digits as it takes."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    if not 0 < share < 1:
        return f"{100 * share:.{digits}f} %"
    enough = next((places for places in range(digits, 4) if 0 < round(100 * share, places) < 100), None)
    if enough is None:
        return "under 0.001 %" if share < 0.5 else "over 99.999 %"
    return f"{100 * share:.{enough}f} %"


def percent_of(part: int, total: int) -> str:
    """What a part is of the whole, with one digit: `12.5 %`; 0 % of nothing."""
    return percent(part / total if total else 0.0, digits=1)


def counted(number: int, noun: str) -> str:
    """`1 check`, `2 checks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some_of(names: Collection[object], *, most: int) -> str:
    """Several names in a message: the first `most` of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, islice(names, most))) + (f" and {more:,} more" if more > 0 else "")
