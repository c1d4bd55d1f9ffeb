"""`loradock diagnose --evaluate`: what a faster setting costs in accuracy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.model_options import Command
from loradock.commands.page import say
from loradock.commands.paths import PathsAfter

if TYPE_CHECKING:
    from loradock.analysis.diagnose.accuracy import Asked
    from loradock.analysis.diagnose.arms import Arm


def options(command: Command) -> Command:
    """Those of the accuracy."""
    several = (
        click.option(
            "--evaluate",
            "tasks",
            type=PathsAfter("="),
            multiple=True,
            metavar="NAME=FILE",
            help="Also train the baseline and the faster trials (or those of --trials), and ask them this task.",
        ),
        click.option(
            "--evaluate-steps", type=click.IntRange(min=1), default=100, show_default=True, help="Steps of each."
        ),
        click.option("--evaluate-limit", type=click.IntRange(min=1), metavar="N", help="The first N rows of a task."),
    )
    for option in reversed(several):
        command = option(command)
    return command


def measured(
    arms: Sequence[Arm], asked: Asked, *, command: Callable[[Sequence[str]], str], folder: Path | None
) -> dict[str, Any]:
    """The accuracies; runs lie in `folder`, or in one that is removed. `command`: settings -> the `train` command."""
    from loradock.analysis.diagnose import accuracy, diagnose

    def train(settings: Sequence[str]) -> list[str]:
        return shlex.split(command(settings))[1:]

    with nullcontext(folder) if folder else diagnose.folder_beside(None) as place:
        return accuracy.measure(arms, asked, train=train, folder=place, tell=lambda text: say(text, stderr=True))
