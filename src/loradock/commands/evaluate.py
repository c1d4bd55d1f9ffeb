"""`loradock evaluate`: how well an adapter embeds, on a retrieval data set and on pairs of sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.embed_options import INSTRUCTION, MODEL, opened
from loradock.commands.model_options import BATCH_TOKENS, computing_options, counted, quiet
from loradock.commands.page import page
from loradock.errors import UsageError

if TYPE_CHECKING:
    from loradock.embedding.evaluate import Measure


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@click.option(
    "--retrieval", metavar="DIR", type=click.Path(path_type=Path), help="corpus.jsonl, queries.jsonl, qrels/test.tsv."
)
@click.option("--split", default="test", show_default=True, help="qrels/SPLIT.tsv.")
@click.option(
    "--sts", metavar="FILE", type=click.Path(path_type=Path), help="Rows with sentence1, sentence2 and score."
)
@INSTRUCTION
@click.option("--passage-instruction", default="", metavar="TEXT", help="What passages had in training; often nothing.")
@click.option("--base", "has_base", is_flag=True, help="Evaluate the base without the adapter too.")
@computing_options
@BATCH_TOKENS
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
def evaluate(
    adapter: Path,
    *,
    retrieval: Path | None,
    split: str,
    sts: Path | None,
    instruction: str,
    passage_instruction: str,
    has_base: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure how well ADAPTER (a run, its adapter, or a merged model) embeds.

    \b
    loradock evaluate runs/pairs-001 --retrieval scifact/ --instruction "Find the evidence"
    loradock evaluate runs/pairs-001 --sts stsb.jsonl --base

    Retrieval: nDCG@10, recall@1, recall@10 and MRR@10, by cosine similarity over all passages. Sentences: Spearman's
    correlation. The instruction stands with queries, and with both sentences of a pair. With --base each measure has
    the 95 % interval of its difference, by a paired bootstrap over queries or pairs.
    """
    if not retrieval and not sts:
        raise UsageError("there is nothing to evaluate on", hint="add --retrieval DIR, --sts FILE, or both")
    quiet()
    from loradock.embedding import beir
    from loradock.embedding import evaluate as evaluating

    data = beir.read(retrieval, split=split) if retrieval else None
    pairs = evaluating.read_pairs(sts) if sts else None
    instructions = evaluating.Instructions(query=instruction, passage=passage_instruction)
    found: dict[str, Measure] = {}
    with opened(adapter, asked) as (embedder, status):
        if has_base and not embedder.has_adapter:
            raise UsageError(f"{adapter} is a whole model: there is no base beside it", hint="leave out --base")
        given = {"has_base": has_base, "progress": lambda what, done: counted(status, f"{what} embedded")(done)}
        if data:
            found |= evaluating.retrieval(embedder, data, instructions, **given)
        if pairs:
            found |= evaluating.similarity(embedder, pairs, instructions, **given)
    for note in data.notes if data else []:
        click.echo(f"note: {note}", err=True)
    counts = {"queries": len(data.queries), "passages": len(data.passages)} if data else {}
    counts |= {"pairs": len(pairs.scores)} if pairs else {}
    if as_json:
        click.echo(json.dumps({**counts, "measures": evaluating.as_dict(found)}, indent=2))
        return
    _show(found, counts, has_base=has_base)


def _show(found: Mapping[str, Measure], counts: Mapping[str, int], *, has_base: bool) -> None:
    from rich.table import Table

    names = ["measure", *(["base", "adapter", "difference", "95 % interval"] if has_base else ["value"])]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, each in found.items():
        cells = [f"{each.value:.4f}"]
        if each.base is not None:
            apart = [f"{each.value - each.base:+.4f}", f"{each.low:+.4f} to {each.high:+.4f}"]
            cells = [f"{each.base:.4f}", *cells, *apart]
        table.add_row(name, *cells)
    with page() as screen:
        screen.print(", ".join(f"{number:,} {name}" for name, number in counts.items()))
        screen.print(table)
