"""Rows that deserve a look: answers that repeat the prompt or hardly exist, unreadable characters, odd lengths.

Nothing here is an error: what cannot be trained on at all (an empty answer, a broken record, a row of which nothing
is learned) is refused when rows are prepared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loradock.data.formats.base import Judgement, Pairs, Sample
from loradock.data.prepared import Array, Prepared
from loradock.data.select import Fitted

PLACES_KEPT = 5
SHORT_ANSWER_TOKENS = 2
OUTLIER_SPANS = 3.0
"""Beyond the quartiles by three times their distance is `far out` (Tukey 1977); here of the lengths' logarithms."""
LEAST_OCTAVES = 0.5
"""Taken for the quartiles' distance where rows are of nearly one length."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffd\ue000-\uf8ff]")
"""Control characters, a byte order mark, the replacement character, private use."""
MOJIBAKE = re.compile(
    "[\u00c2\u00c3][\u0080-\u00bf\u20ac\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
    "\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178]"
    "|\u00e2(?:\u20ac|\u0080)[\u0080-\u00bf\u02dc\u0153\u0161-\u017e\u2013-\u203a\u2122]|\u00f0(?:\u0178|\u009f)"
    "|\u00ef\u00bf\u00bd"
)
"""UTF-8 that was read as Latin-1 or Windows-1252: accented letters, quotation marks and dashes, emoji."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """One kind of odd row: `name` for programs, `what` in words, how many rows, and where the first ones are."""

    name: str
    what: str
    rows: int
    places: tuple[str, ...]


class Places(Protocol):
    """What knows where each row came from; `Prepared` is one."""

    def place(self, index: int) -> str:
        """`file:line` of a row."""
        ...


@dataclass
class Texts:
    """What the text of rows shows, row by row: counts, and the first rows of each kind. `characters` of all text.

    `labels`: how many answers are labelled as desirable, and how many as undesirable; empty where none is labelled.
    """

    rows: int = 0
    characters: int = 0
    unreadable_characters: int = 0
    found: dict[str, int] = field(default_factory=dict[str, int])
    first: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    labels: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, sample: Sample) -> None:
        """Look at the next row."""
        if isinstance(sample, Judgement):
            label = "desirable" if sample.is_desirable else "undesirable"
            self.labels = {"desirable": 0, "undesirable": 0} | self.labels
            self.labels[label] += 1
        texts = parts(sample)
        prompt, answer = texts[-2] if len(texts) > 1 else "", texts[-1]
        if prompt.strip() and prompt.strip() == answer.strip():
            self._note("answer-is-prompt")
        unprintable = sum(len(UNPRINTABLE.findall(text)) for text in texts)
        mojibake = sum(len(match) for text in texts if not text.isascii() for match in MOJIBAKE.findall(text))
        if unprintable:
            self._note("unprintable")
        if mojibake:
            self._note("mojibake")
        self.unreadable_characters += unprintable + mojibake
        self.characters += sum(map(len, texts))
        self.rows += 1

    def _note(self, name: str) -> None:
        self.found[name] = self.found.get(name, 0) + 1
        first = self.first.setdefault(name, [])
        if len(first) < PLACES_KEPT:
            first.append(self.rows)

    def suspicions(self, prepared: Places) -> list[Suspicion]:
        """What was found; `prepared` are the same rows, for their places."""
        share = self.unreadable_characters / max(1, self.characters)
        whats = {
            "answer-is-prompt": "the answer is the prompt again",
            "unprintable": f"control or replacement characters ({share:.2g} of all characters, with mojibake)",
            "mojibake": "looks like UTF-8 read as Latin-1 (mojibake)",
        }
        return [
            Suspicion(
                name=name, what=what, rows=self.found.get(name, 0), places=places(prepared, self.first.get(name, []))
            )
            for name, what in whats.items()
        ]


def parts(sample: Sample) -> list[str]:
    """The texts of a row, the answer last, and before it what it answers; of two answers the chosen one."""
    if isinstance(sample, Pairs):
        return [side.text for side in (*sample.negatives, sample.query, *sample.positives[:1])]
    return (sample.answered or sample).texts


def by_tokens(prepared: Prepared, *, at_limit: Fitted | None, max_length: int, used: Array) -> list[Suspicion]:
    """What lengths and masks show: short answers and outliers of all rows, and of those `used` the ones left out.

    `at_limit`: the used rows as a run cuts them, None where none is left.
    """
    lengths = np.diff(prepared.offsets)
    low, high = fences(lengths)
    kept = np.unique(at_limit.rows) if at_limit else np.zeros(0, dtype=np.int64)
    whats = {
        "short-answer": (
            f"at most {SHORT_ANSWER_TOKENS} supervised tokens, the end of the turn included",
            np.flatnonzero(prepared.learned <= SHORT_ANSWER_TOKENS),
        ),
        "outlier-long": (f"far longer than the others: over {high:,.0f} tokens", np.flatnonzero(lengths > high)),
        "outlier-short": (f"far shorter than the others: under {low:,.0f} tokens", np.flatnonzero(lengths < low)),
        "left-out": (
            f"label share 0 at data.max_length={max_length} (or over-long and dropped): not trained on",
            np.setdiff1d(used, kept, assume_unique=True),
        ),
    }
    return [
        Suspicion(name=name, what=what, rows=len(rows), places=places(prepared, rows[:PLACES_KEPT].tolist()))
        for name, (what, rows) in whats.items()
    ]


def fences(lengths: Array) -> tuple[float, float]:
    """Tokens below and above which a row is an outlier among rows of these lengths."""
    low, high = (float(value) for value in np.percentile(np.log2(lengths), (25, 75)))
    reach = OUTLIER_SPANS * max(LEAST_OCTAVES, high - low)
    return float(2 ** (low - reach)), float(2 ** (high + reach))


def places(prepared: Places, rows: Iterable[int]) -> tuple[str, ...]:
    """`file:line` of each row."""
    return tuple(prepared.place(row) for row in rows)
