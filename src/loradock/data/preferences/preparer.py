"""Rows with a chosen and a rejected answer -> two documents of tokens each, rendered and masked like rows to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loradock.config.sections.data import DataConfig
from loradock.data.cache import FIRST, Chunk
from loradock.data.formats.base import PreferencePair
from loradock.data.pool import Preparer, Refused, Result, Row
from loradock.data.row_task import Task
from loradock.data.tokenise import TokenizerSpec

CHOSEN, REJECTED = FIRST, 1
"""What a document is in its pair."""
NAMES = ("chosen", "rejected")


@dataclass(frozen=True, kw_only=True)
class PreferenceTask(Task):
    """How rows become pairs of documents: template, masks and special tokens are those of rows to answer."""

    @classmethod
    def of(cls, data: DataConfig, spec: TokenizerSpec) -> PreferenceTask:
        """See `Task.of`; both answers are masked alike, and their prompt never learned."""
        changes = {"loss": "auto"}
        if data.reasoning == "all_turns":  # a pair is two documents, and stays so
            changes["reasoning"] = "as_template"
        return cls(**vars(Task.of(data.model_copy(update=changes), spec)))

    @property
    def identity(self) -> dict[str, Any]:
        """See `pool.Work`."""
        return {"preferences": super().identity}

    def preparer(self) -> Preparer:
        """See `pool.Work`."""
        return PreferencePreparer(super().preparer())


class PreferencePreparer:
    """Makes chunks of documents of chunks of rows; a row of which one answer cannot be learned is refused whole."""

    def __init__(self, prepare_rows: Preparer) -> None:
        self._prepare_rows = prepare_rows

    def __call__(self, rows: list[Row]) -> Result:
        """The documents of the rows, and what is wrong with those that have none."""
        chunk, refused = self._documents(rows)
        bad = {row for row, _ in refused}
        if bad:
            rows_left = [row for number, row in enumerate(rows) if number not in bad]
            chunk, _ = self._documents(rows_left)
        return chunk, [(rows[row][0], what) for row, what in refused]

    def _documents(self, rows: list[Row]) -> tuple[Chunk, list[tuple[int, str]]]:
        """Documents in pairs, unless some are refused: by the row's number, the first thing that is wrong with it."""
        answers: list[Row] = []
        for _, sample in rows:
            assert isinstance(sample, PreferencePair)
            answers += [(len(answers), sample.chosen), (len(answers) + 1, sample.rejected)]
        chunk, refused = self._prepare_rows(answers)
        lines = np.array([line or 0 for line, _ in rows], dtype=np.int64)
        places = chunk.lines
        chunk = replace(chunk, lines=lines[places // 2], roles=(places % 2).astype(np.uint8))
        return chunk, self._by_row(refused)

    @staticmethod
    def _by_row(refused: Refused) -> list[tuple[int, str]]:
        problems: dict[int, str] = {}
        for place, what in refused:
            assert place is not None
            problems.setdefault(place // 2, f"{NAMES[place % 2]}: {what}")
        return list(problems.items())
