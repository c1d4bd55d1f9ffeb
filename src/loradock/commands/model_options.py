"""What verbs that use a model have in common: which it is, how it computes, and how its work is shown."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loradock.catalog.storages import STORAGES
from loradock.commands.page import console_on
from loradock.commands.paths import LocalPath
from loradock.commands.train import QUIET
from loradock.data.templates import NAMES
from loradock.errors import UsageError
from loradock.process import signals

if TYPE_CHECKING:
    from rich.status import Status

    from loradock.use.inference.opener import Opened

Command = TypeVar("Command", bound=Callable[..., Any])
MODEL = click.argument("model", metavar="MODEL", type=LocalPath(exists=True, file_okay=False))
BASE_MODEL = click.option(
    "--base-model",
    "base",
    type=LocalPath(path_type=str),
    metavar="DIR",
    help="Where the adapter's base lies. [default: as recorded]",
)
TRUST = click.option(
    "--trust-remote-code",
    "trusted",
    multiple=True,
    type=LocalPath(path_type=str),
    metavar="NAME",
    help="The base's name, repeated, to run the Python code that it ships. Off otherwise.",
)
TEMPLATE = click.option(
    "--template", type=click.Choice(NAMES), help="How turns are written, of a model without a chat template."
)
BATCH_TOKENS = click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=16_384,
    show_default=True,
    help="Tokens of a forward pass; changes results by rounding only.",
)


def computing_options(command: Command) -> Command:
    """How the model is loaded and computes."""
    options = (
        click.option(
            "--quantization",
            type=click.Choice(tuple(STORAGES)),
            help="How base weights are stored. [default: as in training; a merged model: none]",
        ),
        click.option(
            "--dtype",
            type=click.Choice(("auto", "float32", "bfloat16", "float16")),
            default="auto",
            help="The dtype of matrix products. [default: as in training]",
        ),
        click.option("--device", type=click.Choice(("auto", "cuda", "cpu")), default="auto", help="[default: auto]"),
        TRUST,
    )
    for option in reversed(options):
        command = option(command)
    return command


def quiet() -> None:
    """Before libraries are imported: neither their warnings nor their progress on the screen."""
    from loradock.model.patches import avx512

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    avx512.quiet()


@contextmanager
def opened_model(model: Path, asked: dict[str, Any], *, may_have_own: bool = False) -> Iterator[tuple[Opened, Status]]:
    """The model of a directory, and a line on the terminal; stdout is for the result alone.

    UsageError for a template where the model has one of its own, unless it `may_have_own`.
    """

    status = console_on(stderr=True).status("model")
    with redirect_stdout(sys.stderr), status:  # libraries print there
        from loradock.model.adapter_tensors import passed_over
        from loradock.use.inference.opener import open_model

        opened = open_model(model, **asked)
        if opened.has_adapter and (note := passed_over(opened.model, opened.origin.directory)):
            click.echo(f"note: {note}", err=True)
        if asked.get("template") and opened.tokenizer.chat_template and not may_have_own:
            raise UsageError(f"{model} has a chat template of its own", hint="leave out --template")
        yield opened, status


def counted(status: Status, what: str) -> Callable[[int], None]:
    """A progress that counts on the terminal's last line, and ends where a signal came."""

    def show(done: int) -> None:
        signals.check()
        status.update(f"{done:,} {what}")

    return show
