"""`loradock evaluate --task | --data`: how good a model's answers are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from loradock.commands.evaluate_tables import show
from loradock.commands.model_options import BASE_MODEL, TEMPLATE, counted, opened_model, quiet
from loradock.commands.option_groups import Group
from loradock.commands.page import page, say
from loradock.commands.paths import LocalPath, PathsAfter
from loradock.errors import UsageError

if TYPE_CHECKING:
    from rich.status import Status

    from loradock.use.evaluation.asked import Wanted
    from loradock.use.evaluation.evaluate import Model
    from loradock.use.inference.opener import Opened

OPTIONS = Group(
    click.option(
        "--task",
        "named",
        type=PathsAfter("="),
        multiple=True,
        metavar="NAME[=FILE],...",
        help="Tasks by name, each with its file, or looked for in --tasks-dir.",
    ),
    click.option(
        "--tasks-dir",
        metavar="DIR",
        type=LocalPath(exists=True, file_okay=False),
        help="Where NAME.json, NAME/test.json or NAME_test*.json lie.",
    ),
    click.option("--data", metavar="FILE", type=LocalPath(), help="Rows of your own, with answers."),
    click.option(
        "--metric",
        type=click.Choice(("exact", "choice", "f1", "rouge-l", "loss", "calls")),
        default="exact",
        show_default=True,
        help="What --data is measured by; choice: accuracy by log-probability; calls: calls of tools, as values.",
    ),
    click.option(
        "--method",
        type=click.Choice(("choice", "generate")),
        help="How tasks are answered: by log-probability, or greedily. [default: choice]",
    ),
    click.option(
        "--protocol",
        type=click.Choice(("own", "llm-adapters")),
        default="own",
        show_default=True,
        help="own: the model's template; llm-adapters: that project's prompt, 4 beams.",
    ),
    click.option(
        "--against",
        metavar="MODEL",
        type=LocalPath(exists=True, file_okay=False),
        help="Another model on the same rows, with paired tests.",
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N rows of each file."),
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        help="[default: tasks 32; exact: the longest right answer; calls: that or 256; else 256]",
    ),
    click.option(
        "--training-data",
        multiple=True,
        metavar="FILE",
        type=LocalPath(),
        help="Rows that were trained on, to look for the evaluated ones. [default: the run's own]",
    ),
    click.option(
        "-o",
        "--output",
        metavar="DIR",
        type=LocalPath(file_okay=False),
        help="Where outcomes and results.json are kept. [default: RUN/evaluations, else evaluations/NAME]",
    ),
    BASE_MODEL,
    TEMPLATE,
)
"""Those that only answers have."""


def evaluate_answers(
    model: Path,
    *,
    named: Sequence[str],
    tasks_dir: Path | None,
    data: Path | None,
    metric: str,
    method: Literal["choice", "generate"] | None,
    protocol: Literal["own", "llm-adapters"],
    against: Path | None,
    limit: int | None,
    max_new_tokens: int | None,
    training_data: Sequence[Path],
    output: Path | None,
    base: str | None,
    template: str | None,
    has_base: bool,
    as_json: bool,
    computing: dict[str, Any],
) -> None:
    """Evaluate, compare, keep and print."""
    quiet()
    from loradock.training.lineage import Lineage
    from loradock.use.evaluation import asked, evaluate
    from loradock.use.inference.opener import directory_of

    if against and has_base:
        raise UsageError("--against and --base both name what to compare with", hint="leave out one of them")
    options = asked.Options(metric=metric, method=method, protocol=protocol, limit=limit, max_new_tokens=max_new_tokens)
    lineage = Lineage.found(directory_of(model)) if data else None
    readings = lineage.readings if lineage else ()
    tasks_read = asked.read(named, folder=tasks_dir, data=data, options=options, readings=readings)
    batch_tokens = computing.pop("batch_tokens")
    baseline: Model | None = None
    computing["template"] = template
    computing["may_score"] = all(task.may_score for task in tasks_read)
    with opened_model(model, {**computing, "base": base}, may_have_own=against is not None) as (opened, status):
        _check(opened, model, has_base=has_base)
        folder = output or evaluate.directory_of(opened.origin, model)
        sources, remarks = evaluate.trained_on(opened.origin, training_data)
        run = _runner(tasks_read, batch_tokens=batch_tokens)
        scores = run(opened, status, model, folder)
        if has_base:
            baseline = run(opened, status, model, folder, has_adapter=False)
        has_own = bool(opened.tokenizer.chat_template)
        del opened
    if against:
        with opened_model(against, computing, may_have_own=not has_own) as (second, status):
            baseline = run(second, status, against, output or evaluate.directory_of(second.origin, against))
    settings = {"protocol": protocol, "limit": limit, "batch_tokens": batch_tokens}
    report = evaluate.report(scores, tasks_read, settings=settings, other=baseline, trained=sources)
    file = evaluate.write(report, folder)
    for task in tasks_read:
        if task.items.note:
            say(f"note: {task.items.name}: {task.items.note}", stderr=True)
    for remark in remarks:
        say(f"note: {remark}", stderr=True)
    if as_json:
        click.echo(json.dumps(evaluate.as_dict(report), indent=2, ensure_ascii=False))
        return
    with page() as screen:
        show(report, screen, file=file)


def _check(opened: Opened, model: Path, *, has_base: bool) -> None:
    """UsageError for --base without an adapter, and of a reward model."""
    if has_base and opened.scores:
        raise UsageError(f"{model} is a reward model: its base has no head to score with", hint="leave out --base")
    if has_base and not opened.has_adapter:
        raise UsageError(f"{model} is a whole model: there is no base beside it", hint="leave out --base")


def _runner(wanted: Sequence[Wanted], *, batch_tokens: int) -> Any:
    from loradock.use.evaluation import evaluate

    def run(opened: Opened, status: Status, given: Path, folder: Path, *, has_adapter: bool = True) -> Model:
        return evaluate.evaluate(
            opened,
            wanted,
            given=given,
            directory=folder,
            batch_tokens=batch_tokens,
            progress=lambda name, count: counted(status, f"rows of {name}")(count),
            has_adapter=has_adapter,
        )

    return run
