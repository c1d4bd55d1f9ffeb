"""Rows as the model sees them: tokens as text, which are learned, which control, and which a longest length cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loradock.data.prepared import Prepared
from loradock.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Fate = Literal["whole", "too long", "nothing left to learn"]
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive tokens of one kind, as text. `is_beyond`: behind the longest length."""

    text: str
    is_learned: bool
    is_control: bool
    is_beyond: bool


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """One row: its number from 1, where it came from, its tokens (those learned, those beyond the length), its text.

    `role`: which of the documents of a row it is, where a row has several. `margin`: that of a pair, if read.
    """

    number: int
    place: str
    tokens: int
    learned: int
    beyond: int
    learned_beyond: int
    pieces: tuple[Piece, ...]
    role: str = ""
    margin: float = 0.0

    @property
    def fate(self) -> Fate:
        """What the longest length does to it."""
        if not self.beyond:
            return "whole"
        return "too long" if self.learned > self.learned_beyond else "nothing left to learn"


def chosen(prepared: Prepared, *, row: int | None, sample: int, documents: int = 1) -> list[int]:
    """Indices of the documents to show: of row number `row` (from 1), else of a sample that is the same each time.

    A row is so many `documents`. UsageError for a row that is not there.
    """
    rows = prepared.rows // documents
    if row is not None:
        if not 1 <= row <= rows:
            raise UsageError(f"there is no row {row:,}", hint=f"--row 1 to --row {rows}")
        drawn = np.array([row - 1])
    else:
        drawn = np.sort(np.random.default_rng(SEED).permutation(rows)[:sample])
    return [documents * int(each) + place for each in drawn for place in range(documents)]


def shown(
    prepared: Prepared,
    index: int,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    documents: int = 1,
    role: str = "",
    reads_margins: bool = False,
) -> ShownRow:
    """A document of `prepared`, whose rows are uncut, beside what `max_length` leaves of it.

    `documents`: how many a row has; `role`: what it is of them; `reads_margins`: the objective does.
    """
    ids, learned = prepared.row(index)
    control = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    kinds = [
        (bool(is_learned), int(token) in control, position >= max_length)
        for position, (token, is_learned) in enumerate(zip(ids, learned, strict=True))
    ]
    beyond = max(0, len(ids) - max_length)
    return ShownRow(
        number=index // documents + 1,
        place=prepared.place(index),
        tokens=len(ids),
        learned=int(np.count_nonzero(learned)),
        beyond=beyond,
        learned_beyond=int(np.count_nonzero(learned[max_length:])),
        pieces=tuple(_pieces(ids.tolist(), kinds, tokenizer=tokenizer)),
        role=role,
        margin=float(prepared.margins[index]) if reads_margins else 0.0,
    )


def _pieces(
    ids: Sequence[int], kinds: Sequence[tuple[bool, bool, bool]], *, tokenizer: PreTrainedTokenizerBase
) -> list[Piece]:
    """Each run of tokens of one kind: what the text grows by, so that no piece loses the space that it begins with."""
    found: list[Piece] = []
    before, position = "", 0
    for kind, run in groupby(kinds):
        position += sum(1 for _ in run)
        text = _decoded(tokenizer, ids[:position])
        grown = text[len(before) :] if text.startswith(before) else _decoded(tokenizer, ids[:position][-1:])
        found.append(Piece(text=grown, is_learned=kind[0], is_control=kind[1], is_beyond=kind[2]))
        before = text
    return found


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
