"""A table whose figures are whole at every width: a line a row, or, where these do not fit, a line a figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table

NAME_COLUMNS = 16
"""Characters that the folded first column keeps at least."""


@dataclass(frozen=True)
class Figures:
    """A rich table of texts, the first column's name a row. That column alone is folded.

    rich would shorten cells that must not be folded (`12.3…`), and leave no column at all to others.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What rich asks for."""
        first, *others = self.table.columns
        first.no_wrap, first.overflow = False, "fold"
        for column in others:
            column.no_wrap = True
        if self.least_columns(console, options) <= options.max_width:
            yield self.table
        else:
            yield from self.records()

    def least_columns(self, console: Console, options: ConsoleOptions) -> int:
        """The width of the table with its first column folded as far as it may be."""
        unbounded = options.update(max_width=10_000)
        names = [*self.table.columns[0].cells, self.table.columns[0].header]
        folded = max(Measurement.get(console, unbounded, name).maximum for name in names) - NAME_COLUMNS
        return Measurement.get(console, unbounded, self.table).maximum - max(0, folded)

    def records(self) -> Iterator[RenderableType]:
        """The rows one below another: the name, then a line for each further cell that is not empty."""
        names, *others = self.table.columns
        if self.table.title:
            yield self.table.title
        for row, name in enumerate(names.cells):
            yield name
            record = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
            record.add_column(overflow="fold")
            record.add_column(overflow="fold")
            for column in others:
                if cell := list(column.cells)[row]:
                    record.add_row(str(column.header).replace("\n", " "), cell)
            yield record
