"""Rows of pairs as groups of documents, which of them a step draws, and how rows make batches: indices, no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from loradock.data.pairs.preparer import NEGATIVE, POSITIVE, QUERY
from loradock.data.prepared import Prepared

Int64 = np.ndarray[Any, np.dtype[np.int64]]
_DRAW, _SPLIT, _ORDER, _SHARE, _BATCHES = 11, 12, 13, 14, 15


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The documents of each row of pairs: int64 [groups] each. A query at `first`, its positives, its negatives."""

    first: Int64
    positives: Int64
    negatives: Int64

    @classmethod
    def of(cls, prepared: Prepared) -> Self:
        """Those of prepared pairs."""
        roles = np.asarray(prepared.roles)
        first = np.flatnonzero(roles == QUERY).astype(np.int64)
        if not first.size:
            return cls(first=first, positives=first, negatives=first)
        positives, negatives = (np.add.reduceat(roles == role, first, dtype=np.int64) for role in (POSITIVE, NEGATIVE))
        return cls(first=first, positives=positives, negatives=negatives)

    def __len__(self) -> int:
        return len(self.first)

    def drawn(self, group: int, *, negatives: int, seed: Sequence[int]) -> list[int]:
        """The documents of a group that a step takes: its query, one positive, and so many negatives, none twice.

        A group that has fewer negatives gives those that it has.
        """
        rng = np.random.default_rng([*seed, _DRAW, group])
        first, positives, others = (int(each[group]) for each in (self.first, self.positives, self.negatives))
        positive = first + 1 + int(rng.integers(positives))
        chosen = rng.permutation(others)[:negatives]
        return [first, positive, *(first + 1 + positives + int(each) for each in chosen)]

    def answers(self, group: int) -> range:
        """The documents that are positives of a group."""
        first = int(self.first[group]) + 1
        return range(first, first + int(self.positives[group]))


def split(
    prepared: Prepared, groups: Groups, *, validation: float, seed: int, places: Int64 | None = None
) -> tuple[Int64, Int64]:
    """(training groups, validation groups), ascending: a share below 1 or a number, from each source in proportion.

    `places` (ascending): those that there are to divide, else all.
    """
    places = np.arange(len(groups)) if places is None else places
    is_held_out = np.zeros(len(places), dtype=np.bool_)
    if validation > 0:
        wanted = validation if validation < 1 else validation / max(1, len(places))
        for index, bounds in enumerate(of_sources(prepared, groups)):
            start, stop = np.searchsorted(places, bounds).tolist()
            rng = np.random.default_rng([seed, _SPLIT, index])
            count = min(stop - start - 1, max(1, round(wanted * (stop - start)))) if stop - start > 1 else 0
            is_held_out[start + rng.permutation(stop - start)[:count]] = True
    return places[~is_held_out], places[is_held_out]


def of_sources(prepared: Prepared, groups: Groups) -> list[tuple[int, int]]:
    """`[start, stop)` of each source's groups; the prepared rows are documents."""
    bounds = [[source.start, source.stop] for source in prepared.sources]
    return [(int(start), int(stop)) for start, stop in np.searchsorted(groups.first, bounds)]


class Batches:
    """The batches of groups that each epoch has: of one source each, as far as that goes.

    Each source is permuted and cut into full batches; what is left of all is permuted together and cut, too; of that
    the last batch, which is not full, is left out unless it is the only one: a smaller one has an easier loss.
    """

    def __init__(
        self, prepared: Prepared, groups: Groups, *, chosen: Int64, size: int, seed: int, is_permuted: bool = True
    ) -> None:
        self._chosen = [chosen[(chosen >= a) & (chosen < b)] for a, b in of_sources(prepared, groups)]
        self._weights = [source.weight for source in prepared.sources]
        self._size, self._seed, self._is_permuted = size, seed, is_permuted
        counts = [len(self._seen(index, epoch=0)) for index in range(len(self._chosen))]
        self.groups_per_epoch = sum(counts)
        self.full = self.groups_per_epoch // size
        self.left_out = self.groups_per_epoch % size if self.full else 0
        self._held: tuple[int, list[Int64]] | None = None

    def __len__(self) -> int:
        return max(1, self.full) if self.groups_per_epoch else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def batch(self, epoch: int, step: int) -> Int64:
        """See `steps.Order`."""
        return self(epoch)[step]

    def __call__(self, epoch: int) -> list[Int64]:
        """The batches of this epoch (from 0), each int64 [size] of groups, in order."""
        if self._held is None or self._held[0] != epoch:
            self._held = (epoch, self._made(epoch))
        return self._held[1]

    def _made(self, epoch: int) -> list[Int64]:
        rng = np.random.default_rng([self._seed, _BATCHES, epoch])
        full: list[Int64] = []
        left: list[Int64] = []
        for index in range(len(self._chosen)):
            seen = self._seen(index, epoch=epoch)
            seen = rng.permutation(seen) if self._is_permuted else seen
            whole = len(seen) // self._size * self._size
            full += np.split(seen[:whole], whole // self._size) if whole else []
            left.append(seen[whole:])
        others = np.concatenate(left)
        others = rng.permutation(others) if self._is_permuted else others
        whole = len(others) // self._size * self._size
        full += np.split(others[:whole], whole // self._size) if whole else []
        if not full:
            return [others]
        return [full[place] for place in rng.permutation(len(full))] if self._is_permuted else full

    def _seen(self, index: int, *, epoch: int) -> Int64:
        """The groups of a source that an epoch sees, as often as its weight says."""
        own, weight = self._chosen[index], self._weights[index]
        whole = int(weight)
        extra = round((weight - whole) * len(own))
        extra = max(1, extra) if not whole and len(own) else extra
        if not extra:
            return np.tile(own, whole)
        cycle, share = divmod(epoch, len(own) // extra)
        order = np.random.default_rng([self._seed, _SHARE, index, cycle]).permutation(own)
        return np.concatenate([np.tile(own, whole), order[share * extra : (share + 1) * extra]])
