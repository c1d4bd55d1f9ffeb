"""Where a command's result goes: to a terminal as wide as that is, or to a file or pipe without trailing blanks.

Nothing printed there is read as markup: names and settings may hold brackets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

PIPED_COLUMNS = 120


@contextmanager
def page() -> Iterator[Console]:
    """A console on stdout; what goes into a file or pipe appears once the page is complete."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, emoji=False, markup=False, width=None if is_terminal else PIPED_COLUMNS)
    if is_terminal:
        yield console
        return
    with console.capture() as captured:
        yield console
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
