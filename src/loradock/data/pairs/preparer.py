"""Rows of queries and passages -> documents as tokens, and which of them are pooled. One document a prepared row.

A document is cut to its length here, its text from the right, so that instruction and end of text stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loradock.config.sections.data import SourceConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.cache import FIRST, Chunk
from loradock.data.formats.base import Pairs, Sample, Side
from loradock.data.formats.fields import RowError
from loradock.data.pairs.template import EmbeddingTemplate, resolve
from loradock.data.problems import Problems
from loradock.data.spans import Rendering
from loradock.data.special import Finder, SpecialTokens, of_contents
from loradock.data.tokenise import Encoder, TokenizerSpec

QUERY, POSITIVE, NEGATIVE = FIRST, 1, 2
"""What a document is in its row."""
CHARACTERS_A_TOKEN = 32
"""Of a text so many characters for each token that is kept are looked at first: a text of megabytes is not tokenised
whole to keep its first page. Where they make too few tokens, all of it is."""

Refused = list[tuple[int | None, str]]


@dataclass(frozen=True, kw_only=True)
class PairTask:
    """How rows become documents to embed: everything that a worker process needs. Lengths in tokens."""

    spec: TokenizerSpec
    template: EmbeddingTemplate
    query_length: int
    passage_length: int
    special_tokens: SpecialTokens

    @classmethod
    def of(cls, embedding: EmbeddingConfig, *, spec: TokenizerSpec, special: SpecialTokens) -> PairTask:
        """As the configuration asks for it. ConfigError or InputMissing for a template that is none."""
        return cls(
            spec=spec,
            template=resolve(embedding.template, spec=spec),
            query_length=embedding.query_length,
            passage_length=embedding.passage_length,
            special_tokens=of_contents(special),
        )

    @property
    def date(self) -> None:
        """No template of texts to embed writes it."""
        return None

    @property
    def unread_fields(self) -> frozenset[str]:
        """See `pool.Work`."""
        return frozenset()

    def preparer(self) -> PairPreparer:
        """See `pool.Work`."""
        return PairPreparer(self)

    @property
    def identity(self) -> dict[str, Any]:
        """See `pool.Work`."""
        template = [self.template.source, self.template.tokens]
        lengths = [self.query_length, self.passage_length]
        return {"pairs": [self.spec.fingerprint, template, *lengths, self.special_tokens]}

    def notes(self, manifest: Mapping[str, Any], sources: Sequence[SourceConfig]) -> Iterator[str]:
        """See `pool.Work`."""
        if cut := manifest["cut_documents"]:
            lengths = f"embedding.query_length {self.query_length}, passage_length {self.passage_length}"
            yield f"{cut:,} of {manifest['rows']:,} texts are cut to their length ({lengths})"

    def check_refusals(self, refusals: Problems) -> None:
        """See `pool.Work`: a row is refused for its own text."""


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids, the first that is pooled (all from there are), and whether the text was cut."""

    ids: list[int]
    first_pooled: int
    is_cut: bool


class Documents:
    """Makes documents of sides."""

    def __init__(self, task: PairTask) -> None:
        self._task = task
        self._special = Finder({*task.spec.end_tokens, task.spec.special_tokens["eos_token"]})
        self._encode = Encoder(task.spec, special_tokens=task.special_tokens)

    def __call__(self, side: Side, *, limit: int) -> Document:
        """The document of a side, of at most `limit` tokens. RowError where its instruction leaves no room for text."""
        before, after = self._task.template.around(side.instruction)
        short = side.text[: CHARACTERS_A_TOKEN * limit]
        ids, first, end = self._encoded(before, short, after)
        if len(short) < len(side.text) and len(ids) <= limit:
            ids, first, end = self._encoded(before, side.text, after)
        if len(ids) <= limit:
            return Document(ids, first, is_cut=False)
        kept = limit - (len(ids) - end)
        if kept <= first:
            raise RowError(f"the instruction alone has {first} tokens, and a text of at most {limit} is embedded")
        return Document(ids[:kept] + ids[end:], first, is_cut=True)

    def _encoded(self, before: str, text: str, after: str) -> tuple[list[int], int, int]:
        """Token ids of a text between its pieces, the first token of it, and the first after it."""
        whole, span = before + text + after, (len(before), len(before) + len(text))
        special = self._special.within(whole, [span]) if self._special.holds(text) else ()
        rendering = Rendering(whole, (span,), add_special_tokens=False, special_texts=special)
        ids, ((first, end),) = self._encode.located(rendering)
        return ids, first, end


class PairPreparer:
    """Makes chunks of documents of chunks of rows."""

    def __init__(self, task: PairTask) -> None:
        self._task = task
        self._document = Documents(task)

    def __call__(self, rows: list[tuple[int | None, Sample]]) -> tuple[Chunk, Refused]:
        """The documents of the rows, and what is wrong with those that have none."""
        refused: Refused = []
        made: list[tuple[int, int, Document]] = []
        for line, sample in rows:
            assert isinstance(sample, Pairs)
            try:
                made += [(line or 0, role, document) for role, document in self._of(sample)]
            except RowError as error:
                refused.append((line, str(error)))
        return chunk(
            [line for line, _, _ in made], [role for _, role, _ in made], [each for _, _, each in made]
        ), refused

    def _of(self, sample: Pairs) -> list[tuple[int, Document]]:
        sides = [(QUERY, sample.query)]
        sides += [(POSITIVE, side) for side in sample.positives] + [(NEGATIVE, side) for side in sample.negatives]
        task = self._task
        limits = {QUERY: task.query_length, POSITIVE: task.passage_length, NEGATIVE: task.passage_length}
        return [(role, self._document(side, limit=limits[role])) for role, side in sides]


def chunk(lines: list[int], roles: list[int], documents: list[Document]) -> Chunk:
    """The documents one after the other; the mask says which tokens are pooled."""
    lengths = np.array([len(each.ids) for each in documents], dtype=np.int32)
    first = np.array([each.first_pooled for each in documents], dtype=np.int32)
    ids = [token for each in documents for token in each.ids]
    positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Chunk(
        ids=np.array(ids, dtype=np.int32),
        supervised=(positions >= np.repeat(first, lengths)).astype(np.uint8),
        lengths=lengths,
        learned=lengths - first,
        lines=np.array(lines, dtype=np.int64),
        roles=np.array(roles, dtype=np.uint8),
        conversations=0,
        special_texts=Counter(),
        cut=sum(each.is_cut for each in documents),
    )
