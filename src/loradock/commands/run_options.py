"""The options that describe a run: CONFIG, --preset, --set and the short forms, the same for each verb."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from loradock.config.load import Loaded, load


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What was asked for on the command line; `load()` merges and checks it."""

    config: Path | None = None
    preset: str | None = None
    overrides: tuple[str, ...] = ()
    shortcuts: dict[str, object] = field(default_factory=dict[str, object])

    def load(self, *, needs_inputs: bool = True) -> Loaded:
        """Merge and check. Raises ConfigError with every problem, or InputMissing where CONFIG cannot be read."""
        return load(
            self.config,
            preset=self.preset,
            overrides=self.overrides,
            shortcuts=self.shortcuts,
            needs_inputs=needs_inputs,
        )


OPTIONS = (
    click.argument("config", required=False, type=click.Path(path_type=Path)),
    click.option("--preset", metavar="NAME", help="A shipped configuration; `loradock config presets` lists them."),
    click.option("overrides", "--set", metavar="KEY=VALUE", multiple=True, help="Set any key: --set lora.rank=8."),
    click.option("--model", metavar="DIR|ID", help="model.name: a local directory or a hub id."),
    click.option("--data", metavar="FILE", multiple=True, help="data.sources: may be repeated."),
    click.option("--output", metavar="DIR", help="output: the run directory."),
    click.option("--max-steps", type=int, metavar="N", help="train.max_steps: optimiser steps."),
    click.option("--batch-size", type=int, metavar="N", help="train.global_batch: samples per optimiser step."),
    click.option("--lr", type=float, metavar="RATE", help="train.learning_rate: the peak."),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options that describe a run; the function receives them as one keyword, `ask: Ask`."""

    @functools.wraps(command)
    def with_ask(
        *,
        config: Path | None,
        preset: str | None,
        overrides: tuple[str, ...],
        model: str | None,
        data: tuple[str, ...],
        output: str | None,
        max_steps: int | None,
        batch_size: int | None,
        lr: float | None,
        **others: Any,
    ) -> Any:
        shortcuts: dict[str, object] = {
            "--model": model,
            "--data": list(data) or None,
            "--output": output,
            "--max-steps": max_steps,
            "--batch-size": batch_size,
            "--lr": lr,
        }
        given = {flag: value for flag, value in shortcuts.items() if value is not None}
        return command(ask=Ask(config=config, preset=preset, overrides=overrides, shortcuts=given), **others)

    wrapped: Callable[..., Any] = with_ask
    for option in reversed(OPTIONS):
        wrapped = option(wrapped)
    return wrapped
