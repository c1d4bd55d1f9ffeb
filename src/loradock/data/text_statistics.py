"""What a data set is made of without a tokenizer: rows, characters and words, copies, and rows that look odd.

A word is what white space separates. Rows are read and checked as `train` does it; tokens, and with them what
data.max_length cuts, what padding costs and how packs fill, need the tokenizer of a model (`data.statistics`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data import duplicates, suspicion
from loradock.data.columns import Contents, UnusedColumn
from loradock.data.corpus import all_there
from loradock.data.duplicates import Fingerprints
from loradock.data.lengths import spread
from loradock.data.prepared import Array
from loradock.data.problems import BadRow, Problems
from loradock.data.read import place_of, shown_files
from loradock.data.sources import samples
from loradock.data.suspicion import PLACES_KEPT, Suspicion, Texts
from loradock.errors import Problem, shown_place

TOKENIZER_ADDS = (
    "token lengths of rows, prompts and answers",
    "rows and tokens that each data.max_length cuts, and the length to use",
    "padding and packing shares",
    "of pairs of answers, how often the chosen one is the longer (with --set objective=preference or reward)",
)


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Characters or words of rows: sum, mean, and percentiles (each an amount that a row has), `max` among them."""

    total: int
    mean: float
    percentiles: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """One source; `longest` in characters."""

    path: str
    format: str
    rows: int
    weight: float
    characters: int
    words: int
    longest: int
    unused_columns: tuple[UnusedColumn, ...]


@dataclass(frozen=True, kw_only=True)
class TextStatistics:
    """Everything that text shows. `answer_*` are of the last turn; `longest_row` is where the longest row stands.

    `tokenizer_adds`: what the statistics have besides where a model is named.
    """

    rows: int
    skipped_rows: int
    sources: tuple[TextSource, ...]
    formats: dict[str, int]
    labels: dict[str, int]
    characters: Amount
    answer_characters: Amount
    words: Amount
    answer_words: Amount
    longest_row: str
    suspicions: tuple[Suspicion, ...]
    tokenizer_adds: tuple[str, ...] = TOKENIZER_ADDS


class Rows:
    """Of each row its place and four amounts, in the order of the sources."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self.files = [shown_files(source) for source in sources]
        self.contents = [Contents() for _ in sources]
        self.amounts = {name: array("q") for name in ("characters", "answer_characters", "words", "answer_words")}
        self._sources, self._lines = array("q"), array("q")

    def add(self, texts: Sequence[str], *, source: int, line: int | None) -> None:
        """Count the next row, whose last text is its answer."""
        words = [len(text.split()) for text in texts]
        counted = (sum(map(len, texts)), len(texts[-1]), sum(words), words[-1])
        for amounts, value in zip(self.amounts.values(), counted, strict=True):
            amounts.append(value)
        self._sources.append(source)
        self._lines.append(line or 0)

    def of(self, name: str) -> Array:
        """int64 [rows]."""
        return np.frombuffer(self.amounts[name], dtype=np.int64)

    @property
    def sources(self) -> Array:
        """int64 [rows]: the number of each row's source."""
        return np.frombuffer(self._sources, dtype=np.int64)

    def place(self, index: int) -> str:
        """`file:line` of a row, or the file where it has no lines."""
        source = self._sources[index]
        return shown_place(*place_of(self.files[source], self.contents[source].starts, self._lines[index] or None))


def measure_texts(
    sources: Sequence[SourceConfig], *, skips: bool = False, progress: Callable[[int], None] | None = None
) -> TextStatistics:
    """The statistics of these sources; `progress(rows)` is called as they are read. `skips`: bad rows are left out.

    Raises InputMissing or DataError for what cannot be read, and one DataError that names every bad row.
    """
    all_there(DataConfig(sources=tuple(sources)))
    rows, texts, prints, problems = Rows(sources), Texts(), Fingerprints(), Problems(can_skip=True)
    skipped = 0
    for index, source in enumerate(sources):
        for line, sample in samples(source, index=index, contents=rows.contents[index]):
            if isinstance(sample, Problem):
                if skips and isinstance(sample, BadRow):
                    skipped += 1
                else:
                    problems.add(sample)
                continue
            rows.add(suspicion.parts(sample), source=index, line=line)
            texts.add(sample)
            prints.add(sample)
            if progress and texts.rows % 1000 == 0:
                progress(texts.rows)
    problems.check(files=[file for files in rows.files for file in files])
    counted = tuple(_source(source, index, rows) for index, source in enumerate(sources))
    formats = Counter[str]()
    for each in counted:
        formats[each.format] += each.rows
    return TextStatistics(
        rows=texts.rows,
        skipped_rows=skipped,
        sources=counted,
        formats=dict(formats),
        labels=texts.labels,
        characters=_amount(rows.of("characters")),
        answer_characters=_amount(rows.of("answer_characters")),
        words=_amount(rows.of("words")),
        answer_words=_amount(rows.of("answer_words")),
        longest_row=rows.place(int(rows.of("characters").argmax())),
        suspicions=(*texts.suspicions(rows), *_by_amounts(rows), *duplicates.within(prints, rows)),
    )


def _amount(values: Array) -> Amount:
    found = spread(values)
    return Amount(total=found.tokens, mean=found.mean, percentiles=found.percentiles)


def _source(source: SourceConfig, index: int, rows: Rows) -> TextSource:
    own = rows.sources == index
    return TextSource(
        path=source.path,
        format=rows.contents[index].format,
        rows=int(own.sum()),
        weight=source.weight,
        characters=int(rows.of("characters")[own].sum()),
        words=int(rows.of("words")[own].sum()),
        longest=int(rows.of("characters")[own].max()),
        unused_columns=tuple(rows.contents[index].unused),
    )


def _by_amounts(rows: Rows) -> list[Suspicion]:
    """Rows far longer or shorter than the others."""
    lengths = rows.of("characters")
    low, high = suspicion.fences(lengths)
    whats = {
        "outlier-long": (f"far longer than the others: over {high:,.0f} characters", np.flatnonzero(lengths > high)),
        "outlier-short": (f"far shorter than the others: under {low:,.0f} characters", np.flatnonzero(lengths < low)),
    }
    return [
        Suspicion(name=name, what=what, rows=len(found), places=suspicion.places(rows, found[:PLACES_KEPT].tolist()))
        for name, (what, found) in whats.items()
    ]
