"""Plain scalars: which unquoted YAML text is a number, a truth value or null, after YAML 1.2's core schema."""

from __future__ import annotations

import re

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_BASED_INT = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,39})(\.[0-9]{0,99})?([eE][-+]?[0-9]{1,3})|(0|[1-9][0-9]{0,39})\.[0-9]{0,99}"
    r"|\.[0-9]{1,99}([eE][-+]?[0-9]{1,3})?)"
)
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(f"{sign}inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}


def scalar(text: str) -> object:
    """The value of a plain (unquoted) scalar after YAML 1.2's core schema; what is no number, bool or null is text.

    Whole numbers with a leading zero or more than 18 digits stay text: a commit hash or a postcode, not a quantity.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
