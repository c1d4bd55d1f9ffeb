"""What a command shows: on a terminal as wide as that is, in a file or pipe as wide as COLUMNS says, without padding.

Nothing printed there is read as markup: names and settings may hold brackets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPED_COLUMNS = 120
"""Where neither a terminal nor COLUMNS says how wide lines may be."""


def fitting_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or on stderr."""
    from rich.console import Console

    is_told = (sys.stderr if stderr else sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = None if is_told else PIPED_COLUMNS
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def show(screen: Console, part: RenderableType) -> None:
    """Print a table or the like; in a file or pipe without trailing blanks."""
    if screen.is_terminal:
        screen.print(part)
        return
    with screen.capture() as captured:
        screen.print(part)
    screen.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)


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
