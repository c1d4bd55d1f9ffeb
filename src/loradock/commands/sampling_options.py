"""How answers are generated: options of `generate` and `chat`."""

from __future__ import annotations

from collections.abc import Callable

import click

from loradock.commands.model_options import Command


def sampling_options(*, max_new_tokens: int) -> Callable[[Command], Command]:
    """The options; `max_new_tokens` is the default of the longest answer."""
    options = (
        click.option(
            "--max-new-tokens",
            type=click.IntRange(min=1),
            default=max_new_tokens,
            show_default=True,
            help="Tokens of the longest answer.",
        ),
        click.option(
            "--temperature",
            type=click.FloatRange(min=0, max=100),
            default=0.0,
            show_default=True,
            help="0: the likeliest token each time (greedy).",
        ),
        click.option(
            "--top-p",
            type=click.FloatRange(min=0, max=1, min_open=True),
            default=1.0,
            show_default=True,
            help="Draw from the likeliest tokens that hold this probability.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn."),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
