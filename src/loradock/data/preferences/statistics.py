"""What preference pairs are made of, as a run would see them: lengths, the length bias, what a longest length costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loradock.data.columns import UnusedColumn
from loradock.data.lengths import Spread, spread
from loradock.data.preferences.pairs import A_PAIR, FittedPairs
from loradock.data.samples.preferences import PreferenceSamples
from loradock.data.statistics import usual
from loradock.facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class SourceOfPairs:
    """One source, and what its rows hold beside the format's fields."""

    path: str
    format: str
    rows: int
    weight: float
    unused_columns: tuple[UnusedColumn, ...]


@dataclass(frozen=True, kw_only=True)
class PairsAtLength:
    """What a longest length leaves of the training pairs, an answer being counted with its prompt."""

    length: int
    kept: int
    over_long: int


@dataclass(frozen=True, kw_only=True)
class PairStatistics:
    """Tokens of the training pairs: the prompt of both answers, which is not learned, and the answers.

    `longer_chosen_share`: of how many pairs the chosen answer has more tokens, `mean_excess` how many more in the mean;
    a model learns to write longer answers from that alone. `equal`: pairs of two equal answers, which are left out.
    """

    template: str
    max_length: int
    pairs: int
    validation_pairs: int
    equal: int
    sources: tuple[SourceOfPairs, ...]
    prompt: Spread
    chosen: Spread
    rejected: Spread
    document: Spread
    longer_chosen_share: float
    longer_rejected_share: float
    mean_excess: float
    lengths: tuple[PairsAtLength, ...]


def measure_pairs(
    samples: PreferenceSamples, *, model: ModelFacts, max_length: int, lengths: Sequence[int] | None
) -> PairStatistics:
    """Of pairs that were prepared uncut; `lengths` are compared besides `max_length`, None: the usual ones."""
    part = samples.train
    fitted: FittedPairs = part.fitted
    learned = fitted.documents.learned.reshape(-1, A_PAIR)
    full = fitted.documents.lengths.reshape(-1, A_PAIR)
    longest = full.max(axis=1)
    compared = sorted({*(usual(model.context_length) if lengths is None else lengths), max_length})
    excess = learned[:, 0].astype(np.int64) - learned[:, 1]
    return PairStatistics(
        template=samples.rendered_with[0],
        max_length=max_length,
        pairs=len(fitted),
        validation_pairs=len(samples.validation.fitted) if samples.validation else 0,
        equal=fitted.equal,
        sources=tuple(
            SourceOfPairs(
                path=source.path,
                format=source.contents.format,
                rows=(source.stop - source.start) // A_PAIR,
                weight=source.weight,
                unused_columns=tuple(source.contents.unused),
            )
            for source in part.prepared.sources
        ),
        prompt=spread(full[:, 0] - learned[:, 0]),
        chosen=spread(learned[:, 0]),
        rejected=spread(learned[:, 1]),
        document=spread(fitted.documents.lengths),
        longer_chosen_share=fitted.longer_chosen_share,
        longer_rejected_share=float((excess < 0).mean()),
        mean_excess=float(excess.mean()),
        lengths=tuple(
            PairsAtLength(length=length, kept=int((longest <= length).sum()), over_long=int((longest > length).sum()))
            for length in compared
        ),
    )
