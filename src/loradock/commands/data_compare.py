"""`loradock data compare`: the rows of a run beside those that another tool prepared."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loradock.commands.data_rows import counted, prepared
from loradock.commands.page import console_on, say
from loradock.commands.paths import LocalPath
from loradock.commands.run_options import Ask, RunCommand, run_options
from loradock.commands.train import QUIET
from loradock.errors import NotReproduced, UsageError

if TYPE_CHECKING:
    from loradock.data.comparison import Comparison


@click.command(cls=RunCommand)
@run_options(output="output of the run; this command writes nothing there.")
@click.option(
    "--prepared",
    "their_path",
    type=LocalPath(),
    metavar="DIR",
    required=True,
    help="What the tool prepared: a directory of `save_to_disk` (DIR#SPLIT for one of its splits), or a file of rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
def compare(ask: Ask, *, their_path: Path, as_json: bool) -> None:
    """Compare ids and labels, row by row, with what axolotl, LLaMA-Factory, ms-swift, TRL or unsloth prepared.

    \b
    loradock config import axolotl.yaml -o run.yaml
    loradock data compare run.yaml --prepared last_run_prepared/8f3a...

    Rows of theirs have input_ids and labels; they are found by their ids, whatever their order. Ends with exit code 85
    where a row differs.
    """
    from loradock.config.sections.data import SourceConfig
    from loradock.data import comparison

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    loaded = ask.load()
    for warning in loaded.warnings:
        say(f"warning: {warning}", stderr=True)
    data = loaded.config.data
    status = console_on(stderr=True).status("rows")
    with redirect_stdout(sys.stderr), status:  # libraries print there; stdout is for our result alone
        looked_at = prepared(loaded.config, progress=counted(status, "prepared"))
        if looked_at.corpus.rows is None:
            what = f"objective {loaded.config.objective} learns from {looked_at.corpus.leading.kind}"
            raise UsageError(f"{what}, and only rows with labels are compared", hint="loradock data show run.yaml")
        rows = comparison.rows_of(
            looked_at.corpus.leading.train.prepared, max_length=looked_at.max_length, cuts=data.long_rows == "truncate"
        )
        found = comparison.compare(rows, comparison.their_rows(SourceConfig(path=str(their_path))))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        for line in told(found, text=lambda token: str(looked_at.tokenizer.decode([token]))):
            say(line)
    if not found.is_equal:
        raise NotReproduced(
            f"{found.rows - found.equal:,} of {found.rows:,} rows here, and {found.their_rows - found.equal:,} of "
            f"{found.their_rows:,} in {their_path}, have no equal",
            hint="loradock data show, with the same arguments and --row N, shows a row as it is learned here",
        )


def told(found: Comparison, *, text: Callable[[int], str]) -> Iterator[str]:
    """What is printed; `text`: of a token."""
    yield f"{found.equal:,} rows have the same ids and labels, of {found.rows:,} here and {found.their_rows:,} there"
    if found.left_out:
        yield f"{found.left_out:,} rows are longer than data.max_length and left out here"
    if found.other_labels:
        yield f"{found.other_labels:,} rows have the same ids, and other tokens of them are learned"
    if found.other_ids:
        yield f"{found.other_ids:,} rows there have ids that no row has here"
    for each in found.differences:
        here, there = (
            "the row has ended"
            if token is None
            else f"{token} {text(token)!r}, {'learned' if is_learned else 'not learned'}"
            for token, is_learned in ((each.ours, each.learned_here), (each.theirs, each.learned_there))
        )
        yield f"{each.place} parts from {each.their_place} at token {each.token}: here {here}; there {there}"
