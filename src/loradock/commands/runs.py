"""`loradock runs`: the runs below a directory, a line each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from loradock.commands.paths import LocalPath
from loradock.errors import InputMissing
from loradock.training.run_dir.listing import Listed, listed

USUAL = "runs"


@click.command()
@click.argument("directory", default=USUAL, type=LocalPath(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def runs(directory: Path, *, as_json: bool) -> None:
    """List the runs below DIRECTORY (default: runs): state, steps, loss, start, where. Read-only.

    \b
    loradock runs
    loradock runs experiments --json
    """
    if not directory.exists():
        hint = "loradock runs" if Path(USUAL).is_dir() else "give the directory that train had as --output"
        raise InputMissing(f"directory {directory} does not exist", hint=hint)
    listing = listed(directory)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in listing], indent=2))
    elif listing:
        click.echo(as_text(listing))
    else:
        click.echo(f"no run in {directory}")


def as_text(listing: list[Listed]) -> str:
    """A line each, under a heading; the run that started last stands last."""
    rows = [("state", "step", "loss", "started (UTC)", "model", "directory")]
    for run in listing:
        step = "-" if run.step is None else f"{run.step}/{run.total_steps or '?'}"
        loss = "-" if run.loss is None else f"{run.loss:.3f}"
        started = (run.started or "-")[:19].replace("T", " ")
        rows.append((run.state, step, loss, started, Path(run.model or "-").name, run.directory))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
