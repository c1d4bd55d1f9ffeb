"""`loradock evaluate --retrieval | --sts`: how well an adapter embeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.embed_options import INSTRUCTION, opened
from loradock.commands.model_options import counted, quiet
from loradock.commands.option_groups import Group
from loradock.commands.page import page, say
from loradock.commands.paths import LocalPath
from loradock.errors import UsageError

if TYPE_CHECKING:
    from loradock.use.embedding.evaluate import Measure

OPTIONS = Group(
    click.option(
        "--retrieval",
        metavar="DIR",
        type=LocalPath(),
        help="Embeddings: corpus.jsonl, queries.jsonl, qrels/test.tsv.",
    ),
    click.option("--split", default="test", show_default=True, help="Embeddings: qrels/SPLIT.tsv."),
    click.option(
        "--sts",
        metavar="FILE",
        type=LocalPath(),
        help="Embeddings: rows with sentence1, sentence2 and score.",
    ),
    INSTRUCTION,
    click.option(
        "--passage-instruction", default="", metavar="TEXT", help="What passages had in training; often nothing."
    ),
)
"""Those that only embeddings have."""


def evaluate_embedding(
    adapter: Path,
    *,
    retrieval: Path | None,
    split: str,
    sts: Path | None,
    instruction: str,
    passage_instruction: str,
    base: str | None,
    has_base: bool,
    as_json: bool,
    computing: dict[str, Any],
) -> None:
    """Measure and print."""
    quiet()
    from loradock.use.embedding import beir
    from loradock.use.embedding import evaluate as evaluating

    data = beir.read(retrieval, split=split) if retrieval else None
    pairs = evaluating.read_pairs(sts) if sts else None
    instructions = evaluating.Instructions(query=instruction, passage=passage_instruction)
    measures: dict[str, Measure] = {}
    with opened(adapter, {**computing, "base": base}) as (embedder, status):
        if has_base and not embedder.has_adapter:
            raise UsageError(f"{adapter} is a whole model: there is no base beside it", hint="leave out --base")
        settings = {"has_base": has_base, "progress": lambda what, count: counted(status, f"{what} embedded")(count)}
        if data:
            measures |= evaluating.retrieval(embedder, data, instructions, **settings)
        if pairs:
            measures |= evaluating.similarity(embedder, pairs, instructions, **settings)
    for note in data.notes if data else []:
        say(f"note: {note}", stderr=True)
    counts = {"queries": len(data.queries), "passages": len(data.passages)} if data else {}
    counts |= {"pairs": len(pairs.scores)} if pairs else {}
    if as_json:
        click.echo(json.dumps({**counts, "measures": evaluating.as_dict(measures)}, indent=2))
        return
    _show(measures, counts, has_base=has_base)


def _show(measures: Mapping[str, Measure], counts: Mapping[str, int], *, has_base: bool) -> None:
    from rich.table import Table

    from loradock.analysis.report.figures import Figures

    names = ["measure", *(["base", "adapter", "difference", "95 % interval"] if has_base else ["value"])]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, measure in measures.items():
        cells = [f"{measure.value:.4f}"]
        if measure.base is not None:
            apart = [f"{measure.value - measure.base:+.4f}", f"{measure.low:+.4f} to {measure.high:+.4f}"]
            cells = [f"{measure.base:.4f}", *cells, *apart]
        table.add_row(name, *cells)
    with page() as screen:
        screen.print(", ".join(f"{number:,} {name}" for name, number in counts.items()))
        screen.print(Figures(table))
