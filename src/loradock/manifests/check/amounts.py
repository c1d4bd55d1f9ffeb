"""What a quantity of Kubernetes stands for: 500m, 16Gi, 1e3."""

from __future__ import annotations

import re
from decimal import Decimal

from loradock.manifests.check.fields import Field

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def number(field: Field) -> Decimal | None:
    """The number that a quantity stands for, in its unit (cores, bytes, pieces); None where it is none."""
    if isinstance(field.value, bool) or not isinstance(field.value, int | float | str):
        return None
    parts = _QUANTITY.fullmatch(str(field.value))
    if parts is None:
        return None
    figure, unit, exponent = parts.groups()
    if unit in _BINARY:
        return Decimal(figure) * 1024 ** _BINARY[unit]
    return Decimal(figure).scaleb(int(exponent) if exponent else _DECIMAL[unit or ""])
