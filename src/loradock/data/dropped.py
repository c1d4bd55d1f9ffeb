"""Rows left out for their length: a few go with a count, many only where the configuration allows it."""

from __future__ import annotations

import math

from loradock.data.select import Fitted
from loradock.errors import DataError


def check_dropped(fitted: Fitted, *, max_dropped: float) -> None:
    """DataError where a larger share of the rows than `max_dropped` is left out."""
    rows = len(fitted.rows) + fitted.dropped
    if fitted.dropped <= max_dropped * rows:
        return
    share = fitted.dropped / rows
    raise DataError(
        f"{fitted.dropped:,} of {rows:,} rows ({share:.1%}) would be left out: over {fitted.max_length} tokens, "
        f"or nothing to learn within them; data.max_dropped allows {max_dropped:.0%}",
        hint="--set data.long_rows=split learns all of them; `loradock data stats` shows what a data.max_length keeps; "
        f"or allow it: --set data.max_dropped={math.ceil(share * 100) / 100:g}",
    )
