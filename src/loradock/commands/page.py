"""What a command shows: on a terminal as wide as that is, in a file or pipe as wide as COLUMNS says, without padding.

Nothing printed there is read as markup: names and settings may hold brackets.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from loradock.process import streams
from loradock.text.terminal import shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UNIT = re.compile(r"\s*(?P<unit>(?:\(?--set (?:'[^']*'|\S+)(?: (?=--set ))?)+\S*|\S*`[^`]*`\S*|\S+)")
PIPED_COLUMNS = 120
"""Of a table, where neither a terminal nor COLUMNS says how wide lines may be; prose is whole there."""


def fitting_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr."""
    of_terminal = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPED_COLUMNS
    width = _given_columns() or of_terminal
    return console_on(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def show(screen: Console, part: RenderableType) -> None:
    """Print a table or the like; in a file or pipe without trailing blanks."""
    if screen.is_terminal:
        screen.print(part)
        return
    with screen.capture() as captured:
        screen.print(part)
    screen.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)


def write(screen: Console, lines: Iterable[str]) -> None:
    """Print lines of prose on a page."""
    for line in lines:
        screen.print(folded(line), soft_wrap=True)


def console_on(*, stderr: bool = False, **settings: Any) -> Console:
    """A console of rich on stdout or stderr: it styles text, of which no character is obeyed by a terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class Showing(Console):
        """What it was given to print is shown; what it adds itself is obeyed."""

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            ours = (
                segment
                if segment.control or segment.text == "\r"
                else segment._replace(text=streams.for_people(segment.text, stderr=stderr))
                for segment in buffer
            )
            return super()._render_buffer(ours)

        @property
        def file(self) -> Any:
            return streams.styled(stderr=stderr)

    return Showing(stderr=stderr, **settings)


def say(text: str, *, stderr: bool = False) -> None:
    """Print lines of prose as wide as the page is."""
    click.echo("\n".join(folded(line, stderr=stderr) for line in text.split("\n")), err=stderr)


def coloured(line: str, color: str, *, indent: int) -> None:
    """Print a line in a colour where stdout is a terminal, unless NO_COLOR forbids it; further ones with an indent."""
    line = folded(line, indent=indent)
    if os.environ.get("NO_COLOR"):
        click.echo(line)
    else:
        click.echo(click.style(shown(line), fg=color), file=streams.styled())


def folded(line: str, *, stderr: bool = False, indent: int = 2) -> str:
    """A line of prose as lines that are as wide as a terminal, or as COLUMNS says; whole where neither says it.

    What is copied (a command, options side by side, a path) stays on one line, however long.
    """
    from rich.cells import cell_len

    columns = _columns(sys.stderr if stderr else sys.stdout)
    if columns is None or cell_len(line) <= columns:
        return line
    inner = " " * (indent if indent < columns // 2 else 2)
    lines = [""]
    for match in UNIT.finditer(line):
        if lines[-1].strip() and cell_len(lines[-1] + match[0]) > columns:
            lines.append(inner + match["unit"])
        else:
            lines[-1] += match[0]
    return "\n".join(lines)


def _columns(stream: TextIO) -> int | None:
    of_terminal = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return _given_columns() or of_terminal or None


def _given_columns() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) or None if columns.isdecimal() else None


@contextmanager
def page() -> Iterator[Console]:
    """A console on stdout; what goes into a file or pipe appears once the page is complete."""
    screen = fitting_console()
    if sys.stdout.isatty():
        yield screen
        return
    with screen.capture() as captured:
        yield screen
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
