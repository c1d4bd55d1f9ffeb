"""What `embed` and `evaluate` of embeddings have in common: which adapter, and its instruction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.page import console_on
from loradock.commands.paths import LocalPath

if TYPE_CHECKING:
    from rich.status import Status

    from loradock.use.embedding.embedder import Embedder

MODEL = click.argument("adapter", metavar="ADAPTER", type=LocalPath(exists=True, file_okay=False))
INSTRUCTION = click.option(
    "--instruction", default="", metavar="TEXT", help="The task, as the rows of training had it."
)


@contextmanager
def opened(adapter: Path, asked: dict[str, Any]) -> Iterator[tuple[Embedder, Status]]:
    """The embedder of a directory, and a line on the terminal; stdout is for the result alone."""

    status = console_on(stderr=True).status("model")
    with redirect_stdout(sys.stderr), status:  # libraries print there
        from loradock.model.adapter_tensors import passed_over
        from loradock.use.embedding.opener import open_embedder
        from loradock.use.inference.opener import directory_of

        embedder = open_embedder(adapter, **asked)
        if embedder.has_adapter and (note := passed_over(embedder.model, directory_of(adapter))):
            click.echo(f"note: {note}", err=True)
        yield embedder, status
