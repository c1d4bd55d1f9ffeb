"""`loradock checkpoint export`: the adapter of a committed checkpoint, as a directory that plain peft and vLLM load."""

from __future__ import annotations

import os
from pathlib import Path

import click

from loradock.errors import NoCheckpoint, Problem, UsageError
from loradock.training.checkpoint.export import export_checkpoint, refuse_unfinished
from loradock.training.checkpoint.manifest import Checkpoint, DamagedCheckpoint, open_checkpoint
from loradock.training.checkpoint.store import newest_good
from loradock.training.run_dir.paths import CHECKPOINTS
from loradock.training.run_dir.resume import read, recorded_config

ATTEMPTS = 3


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "-o", "--output", required=True, metavar="ADAPTER", type=click.Path(path_type=Path), help="A new directory."
)
@click.option("--step", type=click.IntRange(min=0), help="Step of the checkpoint. [default: the newest good one]")
def export(directory: Path, output: Path, step: int | None) -> None:
    """Write the adapter of a checkpoint in DIR, verified, with its tokenizer and chat template, to ADAPTER."""
    if os.path.lexists(output):
        raise UsageError(f"{output} already exists", hint="name a new directory with --output")
    record = read(directory)
    config = recorded_config(record, directory)
    refuse_unfinished(config, directory)
    for attempt in range(ATTEMPTS):
        chosen = _chosen(directory, step=step, run_id=record.get("run_id"))
        try:
            export_checkpoint(chosen, output, record=record, config=config)
            break
        except DamagedCheckpoint as error:  # the run that continues has removed it meanwhile
            if attempt == ATTEMPTS - 1 or chosen.path.exists():
                raise _refused(directory, chosen.step, error) from error
    click.echo(f"{output}: the adapter of step {chosen.step}, verified", err=True)


def _chosen(directory: Path, *, step: int | None, run_id: str | None) -> Checkpoint:
    folder = directory / CHECKPOINTS
    if step is not None:
        try:
            found = open_checkpoint(folder / f"checkpoint-{step}")
        except DamagedCheckpoint as error:
            raise _refused(directory, step, error) from error
        if run_id and found.run_id != run_id:
            raise _refused(directory, step, DamagedCheckpoint(f"it belongs to another run: {found.run_id}"))
        return found
    newest, lines = newest_good(folder, run_id=run_id, is_read_only=True)
    for line in lines:
        click.echo(f"warning: {line}", err=True)
    if newest is None:
        hint = f"loradock train --resume --output {directory}"
        raise NoCheckpoint(f"the run in {directory} has no checkpoint", hint=hint)
    return newest


def _refused(directory: Path, step: int, error: DamagedCheckpoint) -> NoCheckpoint:
    place = directory / CHECKPOINTS / f"checkpoint-{step}"
    is_there = os.path.lexists(place)
    return NoCheckpoint(
        f"checkpoint-{step} is not good" if is_there else f"there is no checkpoint-{step} in {directory}",
        hint=f"loradock checkpoint list {directory} shows which there are",
        problems=[Problem(what=str(error), file=str(place))] if is_there else [],
    )
