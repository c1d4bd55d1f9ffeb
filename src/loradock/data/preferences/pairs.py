"""Which preference pairs are trained on, how their answers are cut, and in which order an epoch sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from loradock.data.prepared import Prepared
from loradock.data.select import EpochOrder, Fitted, Int64, LongRows, fit
from loradock.errors import DataError

A_PAIR = 2


def by_pair(prepared: Prepared) -> Prepared:
    """The same with pairs in the place of documents, for what orders rows."""
    sources = tuple(
        replace(source, start=source.start // A_PAIR, stop=source.stop // A_PAIR) for source in prepared.sources
    )
    return replace(prepared, rows=prepared.rows // A_PAIR, sources=sources)


@dataclass(frozen=True, kw_only=True)
class FittedPairs:
    """Pairs whose answers have at most `max_length` tokens; `documents` are theirs, the chosen before the rejected.

    `pairs` (int64) are places among the prepared pairs. Left out are those that are `over_long` by an answer, or of
    which nothing is learned within the length, and those whose answers are `equal` there.
    """

    pairs: Int64
    documents: Fitted
    over_long: int
    equal: int

    @classmethod
    def of(cls, prepared: Prepared, chosen: Int64, *, max_length: int, long_rows: LongRows) -> Self:
        """Those of the chosen pairs; an answer is cut at its end under `truncate`, and never split.

        DataError where none is left.
        """
        documents = fit(
            prepared,
            rows=documents_of(chosen),
            max_length=max_length,
            long_rows="truncate" if long_rows == "truncate" else "drop",
        )
        owners, counts = np.unique(documents.rows // A_PAIR, return_counts=True)
        complete = owners[counts == A_PAIR]
        answers = selected(documents, np.isin(documents.rows // A_PAIR, complete))
        is_equal = equal_answers(prepared, answers)
        return cls(
            pairs=complete[~is_equal],
            documents=selected(answers, np.repeat(~is_equal, A_PAIR)),
            over_long=len(chosen) - len(complete),
            equal=int(is_equal.sum()),
        )

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def lengths(self) -> Int64:
        """Tokens of both documents of each pair, int64 [pairs]."""
        return self.documents.lengths.astype(np.int64).reshape(-1, A_PAIR).sum(axis=1)

    @property
    def longer_chosen_share(self) -> float:
        """Of how many pairs the chosen answer has more learned tokens: what a length bias comes from."""
        learned = self.documents.learned.reshape(-1, A_PAIR)
        return float((learned[:, 0] > learned[:, 1]).mean()) if len(self) else 0.0

    def order(self, prepared: Prepared, *, seed: int) -> EpochOrder:
        """Of these pairs in each epoch, by the weights of their sources."""
        return EpochOrder(by_pair(prepared), fitted=replace(self.documents, rows=self.pairs), seed=seed)

    def check(self, *, max_dropped: float, long_rows: LongRows) -> None:
        """DataError where a larger share than `max_dropped` is left out, or all."""
        reasons: list[str] = []
        if self.over_long:
            reasons.append(
                f"{self.over_long:,} have an answer of over {self.documents.max_length} tokens with its prompt"
            )
        if self.equal:
            reasons.append(f"{self.equal:,} have two equal answers")
        hints: list[str] = []
        if self.over_long and long_rows != "truncate":
            hints.append("--set data.long_rows=truncate cuts long answers")
        left_out = self.over_long + self.equal
        check_left_out(left_out, pairs=len(self) + left_out, max_dropped=max_dropped, reasons=reasons, hints=hints)


def check_left_out(
    left_out: int,
    *,
    pairs: int,
    max_dropped: float,
    reasons: Sequence[str],
    hints: Sequence[str] = (),
    noun: str = "pairs",
) -> None:
    """DataError where a larger share of the pairs than `max_dropped` is left out, or all; `hints` may keep some.

    `noun`: what is counted, where it is not pairs alone.
    """
    if left_out < pairs and left_out <= max_dropped * pairs:
        return
    share = left_out / max(1, pairs)
    allowed = f"allow it: --set data.max_dropped={math.ceil(share * 100) / 100:g}"
    what = f"{left_out:,} of {pairs:,} {noun} ({share:.1%}) would be left out: {'; '.join(reasons) or 'there is none'}"
    raise DataError(
        f"{what}; data.max_dropped allows {max_dropped:.0%}",
        hint=", or ".join([*hints, *([allowed] if left_out < pairs else [])])
        or "other rows: there is nothing to prefer in these",
    )


def selected(fitted: Fitted, mask: np.ndarray[tuple[int], np.dtype[np.bool_]] | Int64) -> Fitted:
    """The samples where the mask holds, or at these places."""
    columns = {name: getattr(fitted, name)[mask] for name in ("rows", "starts", "lengths", "learned", "contexts")}
    return replace(fitted, **columns)


def equal_answers(prepared: Prepared, documents: Fitted) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Bool [pairs]: whether both documents are the same tokens; only those of equal length are read."""
    lengths = documents.lengths.reshape(-1, A_PAIR)
    is_equal = np.zeros(len(lengths), dtype=np.bool_)
    for pair in np.flatnonzero(lengths[:, 0] == lengths[:, 1]).tolist():
        ids = [
            prepared.row(int(documents.rows[place]), length=int(documents.lengths[place]))[0]
            for place in (A_PAIR * pair, A_PAIR * pair + 1)
        ]
        is_equal[pair] = np.array_equal(ids[0], ids[1])
    return is_equal


def documents_of(pairs: Sequence[int] | Int64) -> Int64:
    """Places of the documents of pairs, int64 [2 * pairs], each chosen one before its rejected one."""
    places = np.asarray(pairs, dtype=np.int64)
    return np.stack([A_PAIR * places, A_PAIR * places + 1], axis=1).ravel()
