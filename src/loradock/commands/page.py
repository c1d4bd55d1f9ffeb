"""What a command shows: on a terminal as wide as that is, in a file or pipe as wide as COLUMNS says, without padding.

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
    from rich.console import Console, RenderableType

PIPED_COLUMNS = 120
"""Where neither a terminal nor COLUMNS says how wide lines may be."""


def fitting_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr."""
    is_told = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = None if is_told else PIPED_COLUMNS
    return console_on(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def show(screen: Console, part: RenderableType) -> None:
    """Print a table or the like; in a file or pipe without trailing blanks."""
    if screen.is_terminal:
        screen.print(part)
        return
    with screen.capture() as captured:
        screen.print(part)
    screen.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)


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
    screen = fitting_console()
    if sys.stdout.isatty():
        yield screen
        return
    with screen.capture() as captured:
        yield screen
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
