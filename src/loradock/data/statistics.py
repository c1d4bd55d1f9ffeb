"""What a data set is made of, as a run would see it: lengths in tokens, what each longest length costs, odd rows.

Rows are read, checked, rendered and masked by what `train` uses, and found in the same cache; nothing is cut. A second
pass over the sources looks at their text. Kept in memory are a few numbers a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data import duplicates, recommendation, suspicion
from loradock.data.columns import UnusedColumn
from loradock.data.duplicates import Fingerprints
from loradock.data.lengths import Histogram, Spread, histogram, spread
from loradock.data.prepared import Prepared
from loradock.data.recommendation import Recommendation
from loradock.data.samples.rows import RowPart, RowSamples
from loradock.data.select import fit
from loradock.data.sources import held_out, samples
from loradock.data.suspicion import Suspicion, Texts
from loradock.data.truncation import MICRO_BATCHES, AtLength, Epoch, Truncation
from loradock.errors import DataError, Problem
from loradock.facts import ModelFacts

Array = np.ndarray[Any, Any]
LENGTHS = (256, 512, 1024, 2048)
USUAL_MICRO_BATCH = 8


@dataclass(frozen=True)
class Samples:
    """The rows of the sources, of which each may be several documents: where each came from."""

    prepared: Prepared

    def place(self, index: int) -> str:
        """`file:line` of a row."""
        return self.prepared.place(int(self.prepared.firsts[index]))


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """One source: an epoch sees each of its rows `weight` times, but for those held out.

    `left_out`: those that no run takes (data.min_tokens, data.deduplicate). `unused_columns`: what its rows hold beside
    the format's fields.
    """

    path: str
    format: str
    rows: int
    held_out: int
    left_out: int
    weight: float
    tokens: int
    learned_tokens: int
    longest: int
    unused_columns: tuple[UnusedColumn, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Everything; `tokens`, `context` (not learned) and `learned` are of the training rows, as is all about lengths.

    `rows` counts those of the sources, held-out ones included; suspicions are looked for in all of them, and so are the
    special tokens whose text contents hold (`special_texts`: how often each).
    """

    template: str
    loss: str
    max_length: int
    positions: int | None
    long_rows: str
    rows: int
    train_rows: int
    validation_rows: int
    short_rows: int
    duplicate_rows: int
    samples_per_epoch: int
    sources: tuple[SourceCount, ...]
    formats: dict[str, int]
    labels: dict[str, int]
    tokens: Spread
    context: Spread
    learned: Spread
    label_share: float
    validation: Spread | None
    histogram: Histogram
    lengths: tuple[AtLength, ...]
    suspicions: tuple[Suspicion, ...]
    special_texts: dict[str, int]
    recommendation: Recommendation


def measure(
    corpus: RowSamples,
    *,
    model: ModelFacts,
    max_length: int,
    lengths: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Statistics:
    """The statistics of a corpus that was prepared with UNCUT_TOKENS; `max_length` is what a run would cut it to.

    `lengths`: what truncation is reckoned for, besides `max_length`, the recommended one and the one that cuts nothing;
    where it is None, the usual ones up to the model's positions, and these. `progress(rows)` is called as text is
    looked at. Raises DataError where a source is no longer what was prepared.
    """
    config, part = corpus.config, corpus.train
    prepared, rows = part.prepared, part.fitted.rows
    truncation = Truncation(part, epoch=epoch_of(config), model=model)
    advice = recommendation.recommend(truncation, positions=model.context_length)
    marked = {max_length, advice.max_length, advice.whole or advice.max_length}
    wanted = {*(usual(model.context_length) if lengths is None else lengths), *marked}
    reckoned = [truncation.at(length) for length in sorted(wanted)]
    texts, prints = read_texts(config.data.sources, prepared, progress=progress)
    selection = prepared.documents_of(corpus.selection.samples)
    sources = tuple(count(prepared, index, used=rows, selection=selection) for index in range(len(prepared.sources)))
    full, learned = part.fitted.lengths, part.fitted.learned
    rows_of_format = Counter[str]()
    for source in sources:
        rows_of_format[source.format] += source.rows
    return Statistics(
        template=prepared.template,
        loss=config.data.loss,
        max_length=max_length,
        positions=model.context_length,
        long_rows=config.data.long_rows,
        rows=prepared.rows,
        train_rows=len(rows),
        validation_rows=len(corpus.validation.fitted.rows) if corpus.validation else 0,
        short_rows=corpus.selection.short,
        duplicate_rows=corpus.selection.copies,
        samples_per_epoch=corpus.facts.samples_per_epoch,
        sources=sources,
        formats=dict(rows_of_format),
        labels=texts.labels,
        tokens=spread(full),
        context=spread(full - learned),
        learned=spread(learned),
        label_share=part.fitted.supervised_tokens / part.fitted.tokens,
        validation=spread(corpus.validation.fitted.lengths) if corpus.validation else None,
        histogram=histogram(full),
        lengths=tuple(reckoned),
        suspicions=(
            *texts.suspicions(Samples(prepared)),
            *of_tokens(part, config=config, max_length=max_length),
            *duplicates.within(prints, Samples(prepared)),
            *leaks(corpus, prints),
        ),
        special_texts=prepared.special_texts,
        recommendation=replace(advice, reasons=recommendation.reasons(advice, reckoned, truncation, now=max_length)),
    )


def epoch_of(config: RunConfig) -> Epoch:
    """How the run goes through its rows, with the micro-batches to reckon with: none is larger than a step."""
    step, asked = config.train.global_batch, config.train.micro_batch
    wanted = {*MICRO_BATCHES, *([] if asked == "auto" else [asked])}
    return Epoch(
        global_batch=step,
        seed=config.train.seed,
        long_rows=config.data.long_rows,
        overlap=config.data.overlap,
        micro_batches=tuple(sorted({min(each, step) for each in wanted})),
        padded_micro_batch=min(step, USUAL_MICRO_BATCH if asked == "auto" else asked),
    )


def usual(positions: int | None) -> list[int]:
    """The lengths that are always of interest, the model's positions with them and none beyond."""
    return [*(each for each in LENGTHS if positions is None or each <= positions), *([positions] if positions else [])]


def count(prepared: Prepared, index: int, *, used: Array, selection: Array) -> SourceCount:
    """The rows and tokens of one source: a run takes `selection` (ascending), and trains on those in `used`."""
    source = prepared.sources[index]
    offsets = prepared.offsets[source.start : source.stop + 1]
    rows = source.stop - source.start
    usable, trained = (
        int(np.diff(np.searchsorted(rows_of, [source.start, source.stop]))[0]) for rows_of in (selection, used)
    )
    return SourceCount(
        path=source.path,
        format=source.contents.format,
        rows=rows,
        held_out=usable - trained,
        left_out=rows - usable,
        weight=source.weight,
        tokens=int(offsets[-1] - offsets[0]),
        learned_tokens=int(prepared.learned[source.start : source.stop].sum(dtype=np.int64)),
        longest=int(np.diff(offsets).max()),
        unused_columns=tuple(source.contents.unused),
    )


def read_texts(
    sources: Sequence[SourceConfig], prepared: Prepared, *, progress: Callable[[int], None] | None = None
) -> tuple[Texts, Fingerprints]:
    """A second pass over the sources, for what tokens do not show. DataError where they gave other rows before.

    Rows that the preparation left out as bad are left out here too, by their lines.
    """
    texts, prints = Texts(), Fingerprints()
    firsts = prepared.firsts
    skipped = 0
    for index, source in enumerate(sources):
        for line, sample in samples(source, index=index):
            is_next = texts.rows < len(firsts) and int(prepared.lines[firsts[texts.rows]]) == (line or 0)
            if isinstance(sample, Problem) or not is_next:
                skipped += 1
                if skipped > prepared.skipped_rows:
                    raise changed(source.path)
                continue
            texts.add(sample)
            prints.add(sample)
            if progress and texts.rows % 1000 == 0:
                progress(texts.rows)
    if texts.rows != len(firsts):
        raise changed(", ".join(source.path for source in sources))
    return texts, prints


def changed(path: str) -> DataError:
    """A source gave other rows than a moment ago."""
    return DataError(f"{path} changed while it was read", hint="run again when nothing writes to it")


def of_tokens(part: RowPart, *, config: RunConfig, max_length: int) -> list[Suspicion]:
    """Odd lengths, and the training rows that a run would leave out."""
    prepared, rows = part.prepared, part.fitted.rows
    try:
        at_limit = fit(prepared, rows=rows, max_length=max_length, long_rows=config.data.long_rows)
    except DataError:
        at_limit = None
    return suspicion.by_tokens(prepared, at_limit=at_limit, max_length=max_length, used=rows)


def leaks(corpus: RowSamples, prints: Fingerprints) -> list[Suspicion]:
    """Validation rows that are trained on, where there are any."""
    if corpus.validation is None:
        return []
    judged, theirs = corpus.validation.prepared, prints
    if corpus.config.data.validation_files:
        _, theirs = read_texts(held_out(corpus.config.data), judged)
    trained = corpus.train.prepared
    rows = (trained.samples_of(corpus.train.fitted.rows), judged.samples_of(corpus.validation.fitted.rows))
    return duplicates.between(prints, theirs, rows=rows, prepared=(Samples(trained), Samples(judged)))
