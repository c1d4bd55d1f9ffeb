"""`loradock data show`: rows as the model sees them, what is learned of them, and what is cut."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import click

from loradock.commands.data_rows import counted, prepared
from loradock.commands.page import console_on, page, say
from loradock.commands.paths import OutputFile
from loradock.commands.run_options import Ask, RunCommand, run_options
from loradock.commands.train import QUIET
from loradock.errors import NotWritable, UsageError
from loradock.files import atomic_io

SAMPLE = 5
"""Rows shown where no number is asked for."""


@click.command(cls=RunCommand)
@run_options(output="output of the run; this command writes nothing there.")
@click.option("--row", type=click.IntRange(min=1), metavar="N", help="Row number N, from 1 over all sources.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="N random rows. [default: 5]")
@click.option("--html", type=OutputFile(".html", ".htm"), metavar="FILE", help="Write a self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON, the text of each in pieces of one kind.")
def show(ask: Ask, *, row: int | None, sample: int | None, html: Path | None, as_json: bool) -> None:
    """Show rows rendered and tokenised: learned tokens, the template's control tokens, what a length cuts.

    \b
    loradock data show run.yaml
    loradock data show --model DIR --data rows.jsonl --row 17
    loradock data show run.yaml --sample 20 --html rows.html

    Learned text stands between \u27e6 and \u27e7, whatever the terminal. Rows are prepared as `train` does it, into the
    same cache; of the model only config.json and the tokenizer are needed.
    """

    from loradock.analysis.report import rows as report
    from loradock.catalog.samples import KINDS
    from loradock.data.show import chosen, shown

    asked = {"row": row, "sample": sample, "html": html, "json": as_json}
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for first, second in (("row", "sample"), ("html", "json")):
        if asked[first] and asked[second]:
            raise UsageError(f"--{first} and --{second} cannot be used together", hint="leave one of them out")
    loaded = ask.load()
    for warning in loaded.warnings:
        say(f"warning: {warning}", stderr=True)
    status = console_on(stderr=True).status("rows")
    with redirect_stdout(sys.stderr), status:  # libraries print there; stdout is for our result alone
        looked_at = prepared(loaded.config, progress=counted(status, "prepared"))
        corpus, max_length = looked_at.corpus, looked_at.max_length
        dataset = corpus.leading.train.prepared
        kind = KINDS[corpus.leading.kind]
        rows = [
            shown(
                dataset,
                index,
                tokenizer=looked_at.tokenizer,
                max_length=max_length,
                documents=kind.documents,
                role=corpus.leading.role_of(index),
                reads_margins=loaded.config.objective_spec.reads_margins,
            )
            for index in chosen(dataset, row=row, sample=sample or SAMPLE, documents=kind.documents)
        ]
    lines = (line for source in dataset.sources for line in source.told())
    for note in dict.fromkeys((*lines, *corpus.notes)):
        say(note, stderr=True)
    long_rows = loaded.config.data.long_rows if not loaded.config.objective_spec.embeds else None
    if not kind.splits and long_rows == "split":
        long_rows = "drop"
    if as_json:
        content = {
            "max_length": max_length,
            "long_rows": long_rows,
            "of_rows": dataset.rows // kind.documents,
            "rows": [asdict(shown_row) for shown_row in rows],
        }
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    if html:
        shown_rows, of_rows = len(rows) // kind.documents, dataset.rows // kind.documents
        title = f"{shown_rows} of {of_rows:,} rows as the model sees them"
        write(html, report.page(rows, max_length=max_length, long_rows=long_rows, title=title))
        return
    with page() as screen:
        for part in report.parts(rows, max_length=max_length, long_rows=long_rows):
            screen.print(part, soft_wrap=not screen.is_terminal)


def write(file: Path, text: str) -> None:
    """Write a page, whole, and say where."""
    try:
        atomic_io.replace(file, text)
    except OSError as error:
        raise NotWritable(f"{file} cannot be written: {error.strerror}", hint=f"ls -ld {file.parent}") from error
    say(f"written: {file}", stderr=True)
