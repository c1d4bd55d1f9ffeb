"""The rows of a file and the texts in them, with the line of each; every row that cannot be used is named at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loradock.config.sections.data import SourceConfig
from loradock.data.problems import Problems
from loradock.data.read import files, place_of, read, shown_files
from loradock.data.readers import reader_of
from loradock.data.remedies import mending
from loradock.errors import Problem

COLUMNS_SHOWN = 3
"""Of those that hold text: what a hint names."""


class Row(NamedTuple):
    """A row of a file: where it stands, as `Problem` has it, and what it holds."""

    file: str
    line: int | None
    values: dict[str, Any]


class Rows:
    """The rows of a file, read again for each pass over them; `problems` are those of the last pass."""

    def __init__(self, file: Path) -> None:
        self.source = SourceConfig(path=str(file), split="")
        self.problems = Problems()

    def __iter__(self) -> Iterator[Row]:
        """Every row that can be read; the others go to `problems`."""
        self.problems = Problems()
        starts: list[int] = []
        shown = shown_files(self.source)
        are_lines = [reader_of(each.name) for each in files(self.source)]
        before = 0
        for record in read(self.source, starts=starts):
            file, line = place_of(shown, starts, record.line)
            kind = are_lines[shown.index(file)]
            if kind and kind[0].name == "text" and record.line and record.line > before + 1:
                self.refuse(file, (line or 1) - 1, "the line is blank: row i of the result is line i of the file")
            before = record.line or before
            if record.row is None:
                self.refuse(file, line, record.problem or "it cannot be read", hint=mending(file, record.problem))
            else:
                yield Row(file, line, record.row)

    def refuse(self, file: str, line: int | None, what: str, *, hint: str | None = None) -> None:
        """Note what is wrong in a place."""
        self.problems.add(Problem(what=what, file=file, line=line, hint=hint))

    def check(self) -> None:
        """DataError with all that was wrong in the last pass."""
        self.problems.check(files=shown_files(self.source))

    def text(self, row: Row, column: str, *, option: str | None = None) -> str | None:
        """The text in a column of a row; None, and a problem, where there is none. `option` names another column."""
        value = row.values.get(column)
        if isinstance(value, str) and value.strip():
            return value
        what, hint = f"column {column!r} holds no text, but {type(value).__name__}", None
        if column not in row.values:
            what = f"there is no column {column!r}, but {', '.join(map(repr, row.values))}"
            have_text = [name for name, other in row.values.items() if isinstance(other, str) and other.strip()]
            near = [shlex.join([option, name]) for name in have_text[:COLUMNS_SHOWN]] if option else []
            hint = " or ".join(near) or None
        elif value is None or value == "" or isinstance(value, str):
            what = f"column {column!r} is empty"
        self.refuse(row.file, row.line, what, hint=hint)
        return None

    def texts(self, column: str, *, option: str | None = None) -> Iterator[tuple[Row, str]]:
        """Those of a column. DataError with every bad row, once all were read. `option` names another column."""
        for row in self:
            if (text := self.text(row, column, option=option)) is not None:
                yield row, text
        self.check()
