"""`loradock generate`: a file of rows to a file of answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loradock.commands.model_options import (
    BASE_MODEL,
    BATCH_TOKENS,
    MODEL,
    TEMPLATE,
    computing_options,
    counted,
    opened_model,
    quiet,
)
from loradock.commands.paths import LocalPath
from loradock.commands.sampling_options import sampling_options
from loradock.process import streams


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@click.option("--input", "file", required=True, metavar="FILE", type=LocalPath(), help="Rows to answer.")
@click.option("-o", "--output", required=True, metavar="JSONL", type=LocalPath(dir_okay=False), help="Written.")
@sampling_options(max_new_tokens=256)
@click.option("--n", "samples", type=click.IntRange(min=1), default=1, show_default=True, help="Answers to each row.")
@BASE_MODEL
@TEMPLATE
@computing_options
@BATCH_TOKENS
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def generate(
    model: Path,
    *,
    file: Path,
    output: Path,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    samples: int,
    batch_tokens: int,
    as_json: bool,
    **asked: Any,
) -> None:
    """Answer each row of a file with MODEL: a run, an adapter, a merged model, or a base.

    \b
    loradock generate runs/a-001 --input questions.jsonl -o answers.jsonl
    loradock generate runs/a-001 --input questions.txt -o answers.jsonl --temperature 0.7 --n 4

    Rows are those of training, with or without their answers (messages, conversations, instruction, prompt), or lines
    of text. Prompts become tokens as in training. Greedy without --temperature. Batching changes no answer. The
    file is written whole at the end; the same command continues one that was stopped.
    """
    quiet()
    from loradock.use.inference.answer_file import Asked, answer_file
    from loradock.use.inference.sampling import Sampling

    request = Asked(
        max_new_tokens=max_new_tokens,
        samples=samples,
        sampling=Sampling(temperature=temperature, top_p=top_p, seed=seed),
        batch_tokens=batch_tokens,
    )
    with opened_model(model, asked) as (opened, status):
        identity = {"model": opened.origin.digest, "dtype": str(opened.dtype)}
        identity |= {"template": asked["template"]} if asked["template"] else {}
        progress = counted(status, "answers")
        summary = answer_file(opened, file, output, request, identity=identity, progress=progress)
    if summary.empty:
        remedy = f": {summary.remedy}" if summary.remedy else ""
        click.echo(f"warning: {summary.empty:,} of {summary.answers:,} answers are empty{remedy}", err=True)
    streams.result_lies_elsewhere()
    if as_json:
        click.echo(json.dumps({"output": str(output), **asdict(summary)}, indent=2))
        return
    errors = f", {summary.errors:,} of them errors (key `error`)" if summary.errors else ""
    resumed = f"; {summary.resumed:,} were there from before" if summary.resumed else ""
    click.echo(f"{output}: {summary.answers:,} answers{errors}, {summary.tokens:,} generated tokens{resumed}")
