"""`loradock evaluate`: how good a model's answers are on tasks and rows, or how well an adapter embeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loradock.commands import evaluate_answers, evaluate_embedding
from loradock.commands.model_options import BATCH_TOKENS, MODEL, computing_options
from loradock.errors import UsageError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@evaluate_answers.OPTIONS
@evaluate_embedding.OPTIONS
@click.option("--base", "has_base", is_flag=True, help="Evaluate the base without the adapter too, and compare.")
@computing_options
@BATCH_TOKENS
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
@click.pass_context
def evaluate(context: click.Context, model: Path, **given: Any) -> None:
    """Measure MODEL (a run, an adapter, a merged model, or a base): its answers, or its embeddings.

    \b
    loradock evaluate runs/a-001 --task boolq,arc-easy --tasks-dir data/ --base
    loradock evaluate runs/a-001 --task boolq=boolq.json --against runs/b-001
    loradock evaluate runs/a-001 --data heldout.jsonl --metric exact
    loradock evaluate runs/pairs-001 --retrieval scifact/ --instruction "Find the evidence"
    loradock evaluate runs/pairs-001 --sts stsb.jsonl --base

    Answers: tasks (boolq, piqa, siqa, hellaswag, winogrande, arc-easy, arc-challenge, openbookqa) in local files of
    the LLM-Adapters layout, and rows of your own in any format of training. Accuracy has its 95 % interval, chance and
    majority class beside it; --base and --against add paired tests; rows that were trained on are counted, and the
    score without them is given. The same command continues one that was stopped. docs/evaluate.md says more.

    Embeddings: nDCG@10, recall@1, recall@10 and MRR@10, by cosine similarity over all passages; of sentences Spearman's
    correlation. The instruction stands with queries, and with both sentences of a pair. With --base each measure has
    the 95 % interval of its difference, by a paired bootstrap over queries or pairs.
    """
    answers, embedding = evaluate_answers.OPTIONS.typed(context), evaluate_embedding.OPTIONS.typed(context)
    if answers and embedding:
        what = f"{answers[0]} is of answers, {embedding[0]} of embeddings: one command evaluates one of them"
        raise UsageError(what, hint=f"leave out {', '.join(embedding)}, or {', '.join(answers)}")
    if not any(given[name] for name in ("named", "data", "retrieval", "sts")):
        hint = "add --task boolq=FILE or --data FILE; of an embedding model --retrieval DIR or --sts FILE"
        raise UsageError("there is nothing to evaluate on", hint=hint)
    names = ("quantization", "dtype", "device", "batch_tokens")
    shared = {"has_base": given["has_base"], "as_json": given["as_json"]}
    shared["computing"] = {name: given[name] for name in names}
    is_answers = bool(given["named"] or given["data"])
    group = evaluate_answers.OPTIONS if is_answers else evaluate_embedding.OPTIONS
    page = evaluate_answers.evaluate_answers if is_answers else evaluate_embedding.evaluate_embedding
    page(model, **{name: given[name] for name in group.names}, **shared)
