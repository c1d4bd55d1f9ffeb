"""A name that is not known: the one that is spelt most like it, and the one sentence that asks for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

ALIKE = 0.6
"""difflib's ratio from which a name is near: a slip of one letter is above 0.8 in all but the shortest names."""
MOST_COMPARED = 1000
"""Of the choices: a row or a folder of somebody's may have a million names."""
BEFORE, AFTER = "did you mean ", "?"


def nearest(name: str, choices: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """The choice that is spelt most like the name, whatever the case of letters; None where none is near."""
    by_letters = {choice.lower(): choice for choice in islice(choices, MOST_COMPARED)}
    near = difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=alike)
    return by_letters[near[0]] if near else None


def did_you_mean(name: str, choices: Iterable[str], *, before: str = "", alike: float = ALIKE) -> str | None:
    """`did you mean CHOICE?`, with `before` (an option, a folder) as it is typed before it; None where none is near."""
    near = nearest(name, choices, alike=alike)
    return sentence(before + near) if near is not None else None


def sentence(*names: str) -> str:
    """The sentence for names that are surely meant: `did you mean A or B?`."""
    return f"{BEFORE}{' or '.join(names)}{AFTER}"


def named_by(hint: str | None) -> str | None:
    """What such a sentence asks for, to be typed; None for any other hint."""
    text = hint or ""
    is_sentence = text.startswith(BEFORE) and text.endswith(AFTER)
    return text[len(BEFORE) : -len(AFTER)] if is_sentence else None
