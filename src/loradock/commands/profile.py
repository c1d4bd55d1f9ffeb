"""`loradock profile`: where the time of a run goes. A short real training, tables, a verdict, the trace."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import click

from loradock.commands.run_options import Ask, RunCommand, look_for_inputs, run_options
from loradock.files import atomic_io

LEAST_STEPS = 8
SILENT_KINETO = {"KINETO_LOG_LEVEL": "99"}
"""Without a GPU torch's profiler tells an error that is none: it counts GPUs."""


@click.command(cls=RunCommand)
@run_options(output="New folder for trace and tables. [default: one in profiles/]")
@click.option(
    "--steps",
    type=click.IntRange(min=LEAST_STEPS),
    default=12,
    show_default=True,
    help="Optimiser steps to time; some in the middle run under torch's profiler.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Warm-up steps before them, not counted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def profile(ask: Ask, *, steps: int, warmup_steps: int, as_json: bool) -> None:
    """Train a few steps of CONFIG; report where the time goes and what bounds it.

    \b
    loradock profile run.yaml
    loradock profile --model DIR --data rows.jsonl --steps 20 --output my-profile

    The trace (chrome://tracing, ui.perfetto.dev) and a flame summary (speedscope.app) are kept in --output, a new
    folder of profiles/ otherwise. Nothing that was trained is kept. One process on one GPU.
    """
    from loradock.analysis.profile.profile import profile as measured
    from loradock.analysis.profile.recorder import Window
    from loradock.analysis.report import profile as report
    from loradock.commands.page import page
    from loradock.commands.train import QUIET, deterministic, set_environment
    from loradock.commands.train_screen import Screen
    from loradock.env_check.examination import gathered
    from loradock.errors import UsageError
    from loradock.machine import Host
    from loradock.machine.probe import instruction_set
    from loradock.training.claiming import run_name

    set_environment(QUIET)
    warnings.simplefilter("ignore")
    loaded = ask.load()
    look_for_inputs(loaded.config)
    os.environ.update(deterministic(loaded.config.deterministic, cpu=instruction_set(Host())))
    facts = gathered(Host())
    if facts.world_size > 1:
        raise UsageError("profile looks at one process", hint="start it without torchrun")
    for name, value in ({} if facts.has_gpu else SILENT_KINETO).items():
        os.environ.setdefault(name, value)
    output = folder(loaded.config.output, name=run_name(loaded))
    with Screen(is_quiet=True) as screen:
        for warning in loaded.warnings:
            screen.note(f"warning: {warning}")
        screen.note(f"profile: {output}")
        with redirect_stdout(sys.stderr):
            content = measured(
                loaded,
                facts=facts,
                output=output,
                window=Window(warmup_steps=warmup_steps, steps=steps),
                view=screen,
            )
    atomic_io.replace(output / "profile.json", json.dumps(content, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(content, indent=2))
        return
    with page() as shown:
        for heading, table in report.tables(content):
            shown.print(heading, soft_wrap=True)
            shown.print(table)
    for line in report.lines(content):
        click.echo(line)


def folder(asked: str | None, *, name: str) -> Path:
    """Where trace and tables go: the folder that was asked for, empty or new, or the next one of profiles/."""
    from loradock.errors import UsageError
    from loradock.training.run_dir import paths

    if asked is None:
        return paths.numbered(Path("profiles"), name)
    directory = paths.created(Path(asked), may_exist=True)
    if names := atomic_io.contents(directory):
        raise UsageError(f"{directory} is not empty ({names[0]})", hint="name another directory with --output")
    return directory
