"""`loradock embed`: the texts of a file as vectors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from loradock.commands.embed_options import INSTRUCTION, MODEL, opened
from loradock.commands.model_options import BASE_MODEL, BATCH_TOKENS, computing_options, counted, quiet
from loradock.commands.paths import LocalPath, OutputFile
from loradock.process import streams


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@click.option("--input", "file", required=True, metavar="FILE", type=LocalPath(), help="A text in each row.")
@click.option("-o", "--output", required=True, metavar="NPY", type=OutputFile(".npy"), help="Written.")
@INSTRUCTION
@click.option("--column", default="text", show_default=True, help="Which column holds the text.")
@click.option(
    "--query", "kind", flag_value="query", help="Cut texts to embedding.query_length, not embedding.passage_length."
)
@click.option("--passage", "kind", flag_value="passage", default=True, help="The default.")
@click.option("--raw", is_flag=True, help="Keep the length of vectors; without it, it is 1.")
@BASE_MODEL
@computing_options
@BATCH_TOKENS
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def embed(
    adapter: Path,
    *,
    file: Path,
    output: Path,
    instruction: str,
    column: str,
    kind: Literal["query", "passage"],
    raw: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Embed each row of a file with ADAPTER: a run, its adapter, or a merged model.

    \b
    loradock embed runs/pairs-001 --input passages.txt -o passages.npy
    loradock embed ADAPTER --input queries.jsonl --query --instruction "Find the answer" -o queries.npy

    NPY holds numpy float32 [rows, hidden size]: row i is the vector of row i of the file (text: a line; JSONL, JSON,
    CSV, Parquet: the column `text`). Texts become tokens as in training. The file is written whole or not at all.
    """
    quiet()
    from loradock.use.embedding.vectors_file import checked, embed_file

    count = checked(file, column=column)
    with opened(adapter, asked) as (embedder, status):
        result = embed_file(
            embedder,
            file,
            output,
            rows=count,
            column=column,
            instruction=instruction,
            kind=kind,
            is_unit=not raw,
            progress=counted(status, "texts embedded"),
        )
    streams.result_lies_elsewhere()
    if as_json:
        click.echo(json.dumps({"output": str(output), **asdict(result)}, indent=2))
        return
    cut = f", of which {result.cut:,} were cut" if result.cut else ""
    click.echo(f"{output}: {result.rows:,} texts{cut}, {result.tokens:,} tokens, vectors of {result.width:,} numbers")
