"""What a longest length costs: rows cut and tokens lost, padding without packing, how full packs are, and the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loradock.data.samples.rows import RowPart
from loradock.data.select import EpochOrder, Fitted, LongRows, fit
from loradock.data.steps import BatchShape
from loradock.errors import DataError
from loradock.facts import ModelFacts
from loradock.plan.memory.widths import widths

Array = np.ndarray[Any, Any]
MICRO_BATCHES = (1, 4, 8, 16)
PRODUCT_PASSES = 2
"""Forward, and the gradient of the input: the quantised base has no gradient of its own."""
ATTENTION_PASSES = 3.5
"""Flash attention's backward is five products, its forward two (Dao et al. 2022): 1 + 2.5 passes."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What is lost of the training rows at a longest length, each row counted once.

    `rows_cut` lose their end, `rows_dropped` are not trained on at all. `answers_lost`: rows without a learned token
    left inside the length, whatever data.long_rows says; they are always dropped.
    """

    length: int
    rows_whole: int
    rows_cut: int
    rows_dropped: int
    answers_lost: int
    tokens_lost: int
    learned_tokens_lost: int


@dataclass(frozen=True, kw_only=True)
class Padding:
    """One epoch in micro-batches of at most `micro_batch` rows, in the order that a run sees them.

    Unpacked, rows are padded to the longest of their micro-batch: `padding_share` of all positions, in `passes`
    forward passes. Packed, rows are laid end to end without padding, at most `micro_batch` times the length in a pack:
    `packed_passes`, filled to `packed_fill` of that budget. A micro-batch ends with its optimiser step in both.
    """

    micro_batch: int
    passes: int
    padded_tokens: int
    padding_share: float
    packed_passes: int
    packed_fill: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Floating-point operations of an epoch's linear layers and output head, and of its attention."""

    products: float
    attention: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.products + self.attention

    @property
    def attention_share(self) -> float:
        """Of the total; 0 where there is none."""
        return self.attention / self.total if self.total else 0.0


@dataclass(frozen=True, kw_only=True)
class AtLength:
    """All of it for one length. `full_padding_share`: were every row padded to the length itself.

    `packed`: the work of an epoch without padding; `padded`: with micro-batches of `padded_micro_batch` rows.
    """

    cut: Cut
    tokens: int
    full_padding_share: float
    paddings: tuple[Padding, ...]
    packed: Work
    padded: Work
    padded_micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """How a run goes through its rows."""

    global_batch: int
    seed: int
    long_rows: LongRows
    overlap: int
    micro_batches: tuple[int, ...]
    padded_micro_batch: int


class Truncation:
    """The training rows of an uncut part at one length after another, cut by the code that a run cuts them with."""

    def __init__(self, part: RowPart, *, epoch: Epoch, model: ModelFacts) -> None:
        self._part, self._epoch = part, epoch
        self._flops = Flops(model)
        self._cuts: dict[int, Cut] = {}
        self._known: dict[int, AtLength] = {}

    @property
    def rows(self) -> int:
        """Training rows."""
        return len(self._part.fitted.rows)

    @property
    def learned_tokens(self) -> int:
        """Learned tokens of the uncut rows."""
        return self._part.fitted.supervised_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self._part.fitted.lengths.max())

    def cut(self, length: int) -> Cut:
        """What is lost at this length."""
        if length not in self._cuts:
            self._fitted(length)
        return self._cuts[length]

    def at(self, length: int) -> AtLength:
        """Losses, padding, packing and work at this length."""
        if length not in self._known:
            self._known[length] = self._reckoned(length)
        return self._known[length]

    def _reckoned(self, length: int) -> AtLength:
        fitted, epoch = self._fitted(length), self._epoch
        if fitted is None:
            lengths = learned = np.zeros(0, dtype=np.int64)
        else:
            order = EpochOrder(self._part.prepared, fitted=fitted, seed=epoch.seed)(0)
            lengths, learned = fitted.lengths[order].astype(np.int64), fitted.learned[order]
        counts, longest = padded_groups(lengths, micro_batch=epoch.padded_micro_batch, global_batch=epoch.global_batch)
        tokens, learned_tokens = int(lengths.sum()), int(learned.sum(dtype=np.int64))
        return AtLength(
            cut=self._cuts[length],
            tokens=tokens,
            full_padding_share=1 - tokens / (len(lengths) * length) if tokens else 0.0,
            paddings=tuple(
                padding(lengths, micro_batch=each, global_batch=epoch.global_batch, max_length=length)
                for each in epoch.micro_batches
            ),
            packed=self._flops(tokens, squares=float((lengths * lengths).sum()), learned=learned_tokens),
            padded=self._flops(
                int((counts * longest).sum()), squares=float((counts * longest**2).sum()), learned=learned_tokens
            ),
            padded_micro_batch=epoch.padded_micro_batch,
        )

    def _fitted(self, length: int) -> Fitted | None:
        """The samples that are left, None where none is; what was lost is kept: of rows that are split, as if cut."""
        if self._epoch.long_rows != "split":
            return self._judged(length, self._epoch.long_rows)
        self._judged(length, "truncate")
        try:
            overlap = self._epoch.overlap if self._epoch.overlap < length else 0
            return fit(self._part.prepared, rows=self._part.fitted.rows, max_length=length, overlap=overlap)
        except DataError:
            return None

    def _judged(self, length: int, long_rows: LongRows) -> Fitted | None:
        prepared, uncut = self._part.prepared, self._part.fitted
        try:
            fitted = fit(prepared, rows=uncut.rows, max_length=length, long_rows=long_rows)
        except DataError:
            self._cuts[length] = Cut(
                length=length,
                rows_whole=0,
                rows_cut=0,
                rows_dropped=self.rows,
                answers_lost=self._answers_lost(length) if long_rows == "drop" else self.rows,
                tokens_lost=uncut.tokens,
                learned_tokens_lost=uncut.supervised_tokens,
            )
            return None
        self._cuts[length] = Cut(
            length=length,
            rows_whole=self.rows - fitted.over_long,
            rows_cut=fitted.over_long - fitted.dropped,
            rows_dropped=fitted.dropped,
            answers_lost=fitted.nothing_learned,
            tokens_lost=fitted.lost_tokens,
            learned_tokens_lost=fitted.lost_supervised_tokens,
        )
        return fitted

    def _answers_lost(self, length: int) -> int:
        try:
            fitted = fit(self._part.prepared, rows=self._part.fitted.rows, max_length=length, long_rows="truncate")
        except DataError:
            return self.rows
        return fitted.nothing_learned


class Flops:
    """Training flops of a model for what an epoch holds: two a multiply-add, attention over half of its square."""

    def __init__(self, model: ModelFacts) -> None:
        layer = widths(model, rank=1)
        self._token = PRODUCT_PASSES * 2 * model.active_parameters
        self._learned = PRODUCT_PASSES * 2 * model.hidden * model.vocabulary
        self._square = ATTENTION_PASSES * 2 * 2 * layer.attended * model.layers / 2

    def __call__(self, tokens: int, *, squares: float, learned: int) -> Work:
        """`tokens` with padding, `squares`: the sum of squared lengths with padding, `learned` for the output head."""
        return Work(products=self._token * tokens + self._learned * learned, attention=self._square * squares)


def padded_groups(lengths: Array, *, micro_batch: int, global_batch: int) -> tuple[Array, Array]:
    """Rows, and tokens of the longest, of each micro-batch without packing: int64 [micro-batches] each."""
    if not len(lengths):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.arange(len(lengths)) % global_batch % micro_batch == 0)
    return np.diff(np.append(starts, len(lengths))), np.maximum.reduceat(lengths, starts)


def padding(lengths: Array, *, micro_batch: int, global_batch: int, max_length: int) -> Padding:
    """Padding and packing of an epoch whose samples have these lengths (int64, in order)."""
    tokens = int(lengths.sum())
    counts, longest = padded_groups(lengths, micro_batch=micro_batch, global_batch=global_batch)
    padded = int((counts * longest).sum())
    packs = packed_passes(lengths.tolist(), micro_batch=micro_batch, global_batch=global_batch, max_length=max_length)
    return Padding(
        micro_batch=micro_batch,
        passes=len(counts),
        padded_tokens=padded,
        padding_share=1 - tokens / padded if padded else 0.0,
        packed_passes=packs,
        packed_fill=tokens / (packs * micro_batch * max_length) if packs else 0.0,
    )


def packed_passes(lengths: Sequence[int], *, micro_batch: int, global_batch: int, max_length: int) -> int:
    """Packs of an epoch, filled as a run fills them, step by step."""
    shape = BatchShape(micro_batch=micro_batch, packing=True, max_length=max_length)
    steps = range(0, len(lengths), global_batch)
    return sum(len(shape.groups(lengths[first : first + global_batch])) for first in steps)
