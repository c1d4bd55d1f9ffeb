"""Rows that repeat others: exact copies, prompts with several answers, and validation rows that are trained on.

A row is known by eight bytes of its hash, so that a large set fits in memory; among a hundred million rows, two
different ones have the same hash with a probability of 3e-4.
"""

from __future__ import annotations

import hashlib
from array import array

import numpy as np

from loradock.data.formats.base import Judgement, Message, Sample
from loradock.data.prepared import Array
from loradock.data.suspicion import PLACES_KEPT, Places, Suspicion

NO_PROMPT = 0
"""In the place of a prompt's hash where a row has none: plain text."""


class Fingerprints:
    """Hashes of rows and of their prompts, and whether their answer has a label, added row by row: 17 bytes a row."""

    def __init__(self) -> None:
        self._whole, self._prompts, self._labels = array("Q"), array("Q"), array("b")

    def add(self, sample: Sample) -> None:
        """Take the next row in."""
        self._labels.append(isinstance(sample, Judgement))
        *prompt, answer = sample.turns
        known = hashlib.blake2b(digest_size=8)
        for turn in prompt:
            known.update(encoded(turn))
        is_asked = any(turn.content for turn in prompt)
        self._prompts.append(int.from_bytes(known.digest()) | 1 if is_asked else NO_PROMPT)
        known.update(encoded(answer))
        self._whole.append(int.from_bytes(known.digest()))

    @property
    def whole(self) -> Array:
        """uint64 [rows]: of all that a row says."""
        return np.frombuffer(self._whole, dtype=np.uint64)

    @property
    def prompts(self) -> Array:
        """uint64 [rows]: of all but the last answer; NO_PROMPT where that is nothing."""
        return np.frombuffer(self._prompts, dtype=np.uint64)

    @property
    def compared(self) -> Array:
        """int64: places of the rows without a label; several labelled answers to one prompt are what such data are."""
        return np.flatnonzero(np.frombuffer(self._labels, dtype=np.int8) == 0)


def encoded(turn: Message) -> bytes:
    """A turn as bytes that no other turns give."""
    return f"{turn.role}:{len(turn.said)}:{turn.said}".encode()


def within(found: Fingerprints, prepared: Places) -> list[Suspicion]:
    """Copies of earlier rows, and rows that answer an earlier prompt in another way, but of labelled answers."""
    whole, prompts = found.whole, found.prompts
    copies = earlier(whole)
    compared = found.compared
    same_prompt = compared[earlier(prompts[compared])]
    is_other = (prompts[compared] != NO_PROMPT) & (whole[compared] != whole[same_prompt])
    asked, same_prompt = compared[is_other], same_prompt[is_other]
    repeated = np.flatnonzero(copies != np.arange(len(copies)))
    many = len(np.unique(prompts[asked]))
    duplicate = suspicion(
        "duplicate", "an exact copy of an earlier row", repeated, copies[repeated], prepared, prepared
    )
    if not len(compared):
        return [duplicate]
    what = f"another answer to an earlier row's prompt ({many:,} prompts)"
    return [duplicate, suspicion("other-answer", what, asked, same_prompt, prepared, prepared)]


def between(
    train: Fingerprints, validation: Fingerprints, *, rows: tuple[Array, Array], prepared: tuple[Places, Places]
) -> list[Suspicion]:
    """Validation rows that are trained on, or whose prompt is; `rows` and `prepared`: of train, then of validation."""
    used, judged = rows
    kinds = {
        "leaked-row": ("a validation row that is trained on, too", train.whole, validation.whole),
        "leaked-prompt": (
            "a validation row whose prompt is trained on with another answer",
            train.prompts,
            validation.prompts,
        ),
    }
    suspicions: list[Suspicion] = []
    leaked = np.zeros(len(judged), dtype=np.bool_)
    for name, (what, ours, theirs) in kinds.items():
        is_leaked = np.isin(theirs[judged], ours[used]) & (theirs[judged] != NO_PROMPT) & ~leaked
        leaked |= is_leaked
        theirs_leaked = judged[is_leaked]
        first = [int(used[np.argmax(ours[used] == theirs[row])]) for row in theirs_leaked[:PLACES_KEPT]]
        suspicions.append(suspicion(name, what, theirs_leaked, np.array(first, dtype=np.int64), *prepared[::-1]))
    return suspicions


def earlier(hashes: Array) -> Array:
    """int64 [rows]: the first row with the same hash; the row itself where there is none before it."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse]


def suspicion(name: str, what: str, rows: Array, firsts: Array, prepared: Places, of_firsts: Places) -> Suspicion:
    """The finding, each place with the one that it repeats."""
    pairs = zip(rows[:PLACES_KEPT].tolist(), firsts[:PLACES_KEPT].tolist(), strict=True)
    places = tuple(f"{prepared.place(row)} = {of_firsts.place(first)}" for row, first in pairs)
    return Suspicion(name=name, what=what, rows=len(rows), places=places)
