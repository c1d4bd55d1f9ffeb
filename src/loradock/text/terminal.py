"""Text from outside, made fit to be seen: what a terminal would obey is shown, and not done."""

from __future__ import annotations

import re

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, what turns the direction of text around, and bytes that are no text."""
ON_ONE_LINE = re.compile(f"{OBEYED.pattern}|[\n\u2028\u2029]")


def shown(text: str) -> str:
    r"""The text with each such character spelt out (`\x1b`); all other characters stay, newline and tab too."""
    return OBEYED.sub(_spelt, text) if OBEYED.search(text) else text


def on_one_line(text: str) -> str:
    r"""As `shown`, with line ends spelt out, too: a value from a file cannot add a line to a message."""
    return ON_ONE_LINE.sub(_spelt, text)


def _spelt(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def first_line(failure: object) -> str:
    """The first line of what a library says, or the type of its error where it says nothing."""
    return (str(failure).strip().splitlines() or [type(failure).__name__])[0]
