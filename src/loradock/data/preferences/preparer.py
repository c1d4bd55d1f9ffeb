"""Rows with a chosen and a rejected answer -> two documents of tokens each, rendered and masked like rows to answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from loradock.catalog.objectives.base import MARGINS_UNREAD
from loradock.config.sections.data import DataConfig
from loradock.data.cache import FIRST, Chunk
from loradock.data.formats.base import Completion, Conversation, PreferencePair, Sample
from loradock.data.pool import Preparer, Refused, Result, Row
from loradock.data.row_task import Task
from loradock.data.tokenise import TokenizerSpec

CHOSEN, REJECTED = FIRST, 1
"""What a document is in its pair."""


class Answer(NamedTuple):
    """A document of a row: what messages call it, its role in the sample, and the answer with its prompt."""

    name: str
    role: int
    sample: Conversation | Completion


@dataclass(frozen=True, kw_only=True)
class PreferenceTask(Task):
    """How rows become pairs of documents: template, masks and special tokens are those of rows to answer."""

    @classmethod
    def of(
        cls, data: DataConfig, spec: TokenizerSpec, *, unread_fields: frozenset[str] = MARGINS_UNREAD
    ) -> PreferenceTask:
        """See `Task.of`; both answers are masked alike, and their prompt never learned."""
        changes = {"loss": "auto"}
        if data.reasoning == "all_turns":  # a pair is two documents, and stays so
            changes["reasoning"] = "as_template"
        task = Task.of(data.model_copy(update=changes), spec)
        return replace(cls(**vars(task)), unread_fields=unread_fields)

    @property
    def identity(self) -> dict[str, Any]:
        """See `pool.Work`."""
        return {"preferences": super().identity, "margins": "kept"}

    def preparer(self) -> Preparer:
        """See `pool.Work`."""
        return PreferencePreparer(super().preparer())


class PreferencePreparer:
    """Makes chunks of documents of chunks of rows; a row of which one answer cannot be learned is refused whole."""

    def __init__(self, prepare_rows: Preparer) -> None:
        self._prepare_rows = prepare_rows

    @staticmethod
    def answers(sample: Sample) -> tuple[Answer, ...]:
        """The documents of a row."""
        assert isinstance(sample, PreferencePair)
        return Answer("chosen: ", CHOSEN, sample.chosen), Answer("rejected: ", REJECTED, sample.rejected)

    def __call__(self, rows: list[Row]) -> Result:
        """The documents of the rows, and what is wrong with those that have none."""
        chunk, refused = self._documents(rows)
        if refused:
            rows_left = [row for number, row in enumerate(rows) if number not in refused]
            chunk, _ = self._documents(rows_left)
        return chunk, [(rows[row][0], what) for row, what in refused.items()]

    def _documents(self, rows: list[Row]) -> tuple[Chunk, dict[int, str]]:
        """Documents of all rows, unless some are refused: by the row's number, the first thing wrong with it."""
        answers = [(number, answer) for number, (_, sample) in enumerate(rows) for answer in self.answers(sample)]
        chunk, refused = self._prepare_rows([(place, answer.sample) for place, (_, answer) in enumerate(answers)])
        owners = [answers[place] for place in chunk.lines.tolist()]
        chunk = replace(
            chunk,
            lines=np.array([rows[number][0] or 0 for number, _ in owners], dtype=np.int64),
            roles=np.array([answer.role for _, answer in owners], dtype=np.uint8),
            margins=margins if (margins := self._margins(rows, owners)).any() else None,
        )
        return chunk, self._by_row(refused, answers)

    @staticmethod
    def _margins(rows: list[Row], owners: Sequence[tuple[int, Answer]]) -> np.ndarray[Any, Any]:
        """Of each document that of its row, float32."""
        samples = (rows[number][1] for number, _ in owners)
        margins = [each.margin if isinstance(each, PreferencePair) else 0.0 for each in samples]
        return np.array(margins, dtype=np.float32)

    @staticmethod
    def _by_row(refused: Refused, answers: Sequence[tuple[int, Answer]]) -> dict[int, str]:
        problems: dict[int, str] = {}
        for place, what in refused:
            assert place is not None
            number, answer = answers[place]
            problems.setdefault(number, f"{answer.name}{what}")
        return problems
