"""`loradock checkpoint export`: the adapter of a committed checkpoint, as a directory that plain peft loads, or
as a model for sentence-transformers."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from loradock.commands.model_options import BASE_MODEL, TRUST, quiet
from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.errors import NoCheckpoint, Problem, UsageError
from loradock.training.checkpoint.export import export_checkpoint, refuse_unfinished
from loradock.training.checkpoint.manifest import Checkpoint, DamagedCheckpoint, open_checkpoint
from loradock.training.checkpoint.store import newest_good
from loradock.training.run_dir.paths import ADAPTER, CHECKPOINTS
from loradock.training.run_dir.resume import read, recorded_config

ATTEMPTS = 3


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", type=LocalPath(exists=True, file_okay=False))
@click.option("-o", "--output", required=True, metavar="ADAPTER", type=LocalPath(), help="A new directory.")
@click.option("--step", type=click.IntRange(min=0), help="Step of the checkpoint. [default: the newest good one]")
@click.option(
    "--as",
    "kind",
    type=click.Choice(("peft", "sentence-transformers")),
    default="peft",
    show_default=True,
    help="sentence-transformers: of an embedding run; without --step that of its finished adapter.",
)
@click.option("--merge", is_flag=True, help="sentence-transformers: one model, instead of an adapter beside its base.")
@click.option("--instruction", metavar="TEXT", help="sentence-transformers: of the prompt for queries.")
@click.option("--passage-instruction", metavar="TEXT", help="sentence-transformers: of the prompt for passages.")
@BASE_MODEL
@TRUST
@click.option("--json", "as_json", is_flag=True, help="Print what was written, and of which step, as JSON.")
def export(
    directory: Path,
    output: Path,
    step: int | None,
    kind: str,
    as_json: bool,
    base: str | None,
    trusted: tuple[str, ...],
    **asked: Any,
) -> None:
    """Write the adapter of a checkpoint in DIR, verified, with its tokenizer and chat template, to ADAPTER.

    \b
    loradock checkpoint export runs/a-001 -o adapter
    loradock checkpoint export runs/pairs-001 -o model --as sentence-transformers --merge

    As sentence-transformers, DIR may also be an adapter directory. Without --merge, ADAPTER links to the base where it
    lies now.
    """
    from loradock.files.staged import refuse_existing

    refuse_existing(output)
    if kind == "sentence-transformers":
        step_exported = _export_for_others(directory, output, step=step, base=base, trusted=trusted, **asked)
        _print(output, kind, step_exported, as_json=as_json)
        return
    for name, value in asked.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} has no effect here", hint=f"add --as sentence-transformers, or leave out {option}"
            )
    step_exported = _export(directory, output, step=step, base=base, trusted=trusted)
    say(f"{output}: the adapter of step {step_exported}, verified", stderr=True)
    _print(output, kind, step_exported, as_json=as_json)


def _print(output: Path, kind: str, step: int | None, *, as_json: bool) -> None:
    """What was written; of a finished adapter the step is not known."""
    if as_json:
        click.echo(json.dumps({"output": str(output), "as": kind, "step": step}, indent=2, ensure_ascii=False))


def _export(directory: Path, output: Path, *, step: int | None, base: str | None, trusted: tuple[str, ...]) -> int:
    """Write an adapter directory; the step it is of."""
    record = read(directory)
    config = recorded_config(record, directory)
    refuse_unfinished(config, directory)
    for attempt in range(ATTEMPTS):
        checkpoint = _chosen(directory, step=step, run_id=record.get("run_id"))
        try:
            export_checkpoint(checkpoint, output, record=record, config=config, base=base, trusted=trusted)
            return checkpoint.step
        except DamagedCheckpoint as error:  # the run that continues has removed it meanwhile
            if attempt == ATTEMPTS - 1 or checkpoint.path.exists():
                raise _refused(directory, checkpoint.step, error) from error
    raise AssertionError


def _export_for_others(
    directory: Path,
    output: Path,
    *,
    step: int | None,
    base: str | None,
    trusted: tuple[str, ...],
    merge: bool,
    instruction: str | None,
    passage_instruction: str | None,
) -> int | None:
    """Write a model for sentence-transformers; the step it is of, None for a finished adapter."""
    quiet()
    from loradock.use.embedding import st_export
    from loradock.use.embedding.evaluate import Instructions
    from loradock.use.inference.opener import SETTINGS

    instructions = Instructions(query=instruction or "", passage=passage_instruction or "")
    finished = next((place for place in (directory, directory / ADAPTER) if (place / SETTINGS).is_file()), None)
    if finished == directory and step is not None:
        raise UsageError(f"{directory} is an adapter, which has no steps", hint="leave out --step, or name its run")
    with redirect_stdout(sys.stderr), TemporaryDirectory(prefix="loradock-adapter-") as folder:
        adapter = Path(folder, "adapter")
        if finished is None or step is not None:
            step = _export(directory, adapter, step=step, base=base, trusted=trusted)
        else:
            adapter = finished
        st_export.export(adapter, output, is_merged=merge, asked=instructions, given=base, trusted=trusted)
    say(f"{output}: {'merged, ' if merge else ''}for SentenceTransformer({str(output)!r})", stderr=True)
    return step


def _chosen(directory: Path, *, step: int | None, run_id: str | None) -> Checkpoint:
    folder = directory / CHECKPOINTS
    if step is not None:
        try:
            checkpoint = open_checkpoint(folder / f"checkpoint-{step}")
        except DamagedCheckpoint as error:
            raise _refused(directory, step, error) from error
        if run_id and checkpoint.run_id != run_id:
            raise _refused(directory, step, DamagedCheckpoint(f"it belongs to another run: {checkpoint.run_id}"))
        return checkpoint
    newest, lines = newest_good(folder, run_id=run_id, is_read_only=True)
    for line in lines:
        say(f"warning: {line}", stderr=True)
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
