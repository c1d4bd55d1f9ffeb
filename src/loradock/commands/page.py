"""Where a command's result goes: to a terminal as wide as that is, or to a file or pipe without trailing blanks.

Nothing printed there is read as markup: names and settings may hold brackets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from loradock import streams
from loradock.text import shown

if TYPE_CHECKING:
    from rich.console import Console

PIPED_COLUMNS = 120


def console_on(*, stderr: bool = False, **settings: Any) -> Console:
    """A console of rich on stdout or stderr: it styles text, of which no character is obeyed by a terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class Showing(Console):
        """What it was given to print is shown; what it adds itself is obeyed."""

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            ours = (
                each
                if each.control or each.text == "\r"
                else each._replace(text=streams.for_people(each.text, stderr=stderr))
                for each in buffer
            )
            return super()._render_buffer(ours)

        @property
        def file(self) -> Any:
            return streams.styled(stderr=stderr)

    return Showing(stderr=stderr, **settings)


def coloured(line: str, color: str) -> None:
    """Print a line in a colour where stdout is a terminal, unless NO_COLOR forbids it."""
    if os.environ.get("NO_COLOR"):
        click.echo(line)
    else:
        click.echo(click.style(shown(line), fg=color), file=streams.styled())


@contextmanager
def page() -> Iterator[Console]:
    """A console on stdout; what goes into a file or pipe appears once the page is complete."""
    is_terminal = sys.stdout.isatty()
    console = console_on(highlight=False, emoji=False, markup=False, width=None if is_terminal else PIPED_COLUMNS)
    if is_terminal:
        yield console
        return
    with console.capture() as captured:
        yield console
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
