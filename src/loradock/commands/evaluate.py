"""`loradock evaluate`: how good a model's answers are on tasks and rows, or how well an adapter embeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from loradock.commands import evaluate_answers, evaluate_embedding, evaluate_harness
from loradock.commands.model_options import BATCH_TOKENS, MODEL, computing_options
from loradock.commands.option_groups import Group
from loradock.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What can be evaluated. `starts`: parameters of which one asks for it; `shares`: those of others it has too."""

    what: str
    options: Group
    starts: tuple[str, ...]
    page: Callable[..., None]
    shares: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all parameters that the page takes."""
        return (*self.options.names, *self.shares)


KINDS = (
    Kind(
        what="of answers",
        options=evaluate_answers.OPTIONS,
        starts=("named", "data"),
        page=evaluate_answers.evaluate_answers,
    ),
    Kind(
        what="of embeddings",
        options=evaluate_embedding.OPTIONS,
        starts=("retrieval", "sts"),
        page=evaluate_embedding.evaluate_embedding,
        shares=("base",),
    ),
    Kind(
        what="of lm-eval",
        options=evaluate_harness.OPTIONS,
        starts=("harness",),
        page=evaluate_harness.evaluate_harness,
        shares=("limit", "output", "base"),
    ),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@evaluate_answers.OPTIONS
@evaluate_embedding.OPTIONS
@evaluate_harness.OPTIONS
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
    loradock evaluate runs/a-001 --harness arc_easy,hellaswag --base
    loradock evaluate runs/pairs-001 --retrieval scifact/ --instruction "Find the evidence"
    loradock evaluate runs/pairs-001 --sts stsb.jsonl --base

    Answers: tasks (boolq, piqa, siqa, hellaswag, winogrande, arc-easy, arc-challenge, openbookqa) in local files of
    the LLM-Adapters layout, and rows of your own in any format of training. Accuracy has its 95 % interval, chance and
    majority class beside it; --base and --against add paired tests; rows that were trained on are counted, and the
    score without them is given. The same command continues one that was stopped. docs/evaluate.md says more.

    Embeddings: nDCG@10, recall@1, recall@10 and MRR@10, by cosine similarity over all passages; of sentences Spearman's
    correlation. The instruction stands with queries, and with both sentences of a pair. With --base each measure has
    the 95 % interval of its difference, by a paired bootstrap over queries or pairs.

    lm-eval: the model is handed to EleutherAI's harness, where it is installed; its tasks, prompts and figures, never
    in one table with ours. It fetches a task's rows as the task says.
    """
    started = [kind for kind in KINDS if any(given[name] for name in kind.starts)]
    if not started:
        hint = "add --task boolq=FILE or --data FILE; of an embedding model --retrieval DIR or --sts FILE"
        raise UsageError("there is nothing to evaluate on", hint=hint)
    kind = started[0]
    options = kind.options.typed(context)
    for kind_beside in KINDS:
        if foreign := [] if kind_beside is kind else kind_beside.options.typed(context, but=kind.names):
            what = f"{options[0]} is {kind.what}, {foreign[0]} {kind_beside.what}: one command evaluates one of them"
            raise UsageError(what, hint=f"leave out {', '.join(foreign)}, or {', '.join(options)}")
    names = ("quantization", "dtype", "device", "trusted", "batch_tokens")
    shared = {"has_base": given["has_base"], "as_json": given["as_json"]}
    shared["computing"] = {name: given[name] for name in names}
    kind.page(model, **{name: given[name] for name in kind.names}, **shared)
