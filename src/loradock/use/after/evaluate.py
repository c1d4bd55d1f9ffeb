"""`evaluation.tasks`: base and adapter answer them, into run.json and the model card."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, UsageError
from loradock.process import signals
from loradock.use.after.base import After, Finished, Run

if TYPE_CHECKING:
    from loradock.use.evaluation.evaluate import Report

BATCH_TOKENS = 16_384


def check(config: RunConfig) -> None:
    """ConfigError for a task that is none, InputMissing for a file that is not there."""
    from loradock.use.evaluation import tasks

    try:
        tasks.check(config.evaluation.tasks)
    except UsageError as error:
        raise ConfigError(f"evaluation.tasks: {error.what}", hint=error.hint) from error


def is_due(run: Run) -> bool:
    """Asked of a model that answers, and the record's are others."""
    texts, answered = list(run.config.evaluation.tasks), [task["asked"] for task in run.content.get("tasks", [])]
    return bool(texts) and run.config.objective_spec.answers and answered != texts


def make(finished: Finished) -> None:
    """Answer the tasks; the card first, because the record says that all is done."""
    texts = finished.config.evaluation.tasks
    finished.note(f"evaluating {', '.join(texts)}, base and adapter ...")
    with redirect_stdout(sys.stderr):
        report, prompt = report_of(finished)
    tasks = [{"asked": text, **figures} for text, figures in zip(texts, results(report), strict=True)]
    finished.fence()
    write_card(finished, {**finished.content, "tasks": tasks}, prompt)
    finished.put(tasks=tasks)
    for task in tasks:
        low, high = task["interval"]
        finished.note(
            f"{task['task']}: {task['base']:.1%} -> {task['adapter']:.1%} of {task['rows']:,} rows "
            f"(difference {100 * task['difference']:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}; "
            f"majority class {task['majority']:.1%})"
        )


def report_of(finished: Finished) -> tuple[Report, str | None]:
    """What came of the tasks, and a question as the trained template puts it; None where the rows had no turns."""
    from loradock.training.run import trained_prompt
    from loradock.use.evaluation import asked, evaluate
    from loradock.use.inference.opener import open_model

    tasks = asked.read(finished.config.evaluation.tasks, folder=None, data=None, options=asked.Options())
    opened = open_model(finished.directory, trusted=finished.trusted)
    folder = evaluate.directory_of(opened.origin, finished.directory)

    def model(*, has_adapter: bool) -> evaluate.Model:
        return evaluate.evaluate(
            opened,
            tasks,
            given=finished.directory,
            directory=folder,
            batch_tokens=BATCH_TOKENS,
            progress=lambda _, __: signals.check(),
            has_adapter=has_adapter,
        )

    adapted, base = model(has_adapter=True), model(has_adapter=False)
    sources, _ = evaluate.trained_on(opened.origin, ())
    settings = {"protocol": "own", "limit": None, "batch_tokens": BATCH_TOKENS}
    report = evaluate.report(adapted, tasks, settings=settings, other=base, trained=sources)
    evaluate.write(report, folder)
    lineage = opened.origin.lineage
    is_chat = lineage is None or lineage.conversations
    arguments = lineage.template_arguments if lineage else {}
    return report, trained_prompt(opened.tokenizer, arguments) if is_chat else None


def results(report: Report) -> list[dict[str, Any]]:
    """The figures of each task, shares of its rows, as the record keeps them."""
    rows: list[dict[str, Any]] = []
    for result in report.results:
        name = result.wanted.items.name
        difference = report.comparisons[name].difference
        score = result.summary.score
        rows.append(
            {
                "task": name,
                "sha256": result.wanted.items.sha256,
                "rows": score.rows,
                "adapter": score.value,
                "base": score.value - difference.difference,
                "difference": difference.difference,
                "interval": [difference.low, difference.high],
                "p": difference.p,
                "chance": result.summary.chance,
                "majority": result.summary.majority,
                "trained_on": len(result.contamination.rows) if result.contamination else None,
            }
        )
    return rows


def write_card(finished: Finished, content: dict[str, Any], prompt: str | None) -> None:
    """The model card with the tasks in it; the one that is there stays where another version's record lacks a part."""
    from loradock.training.observers import model_card
    from loradock.training.run_dir.paths import ADAPTER
    from loradock.training.run_dir.record import metrics

    lines, file = metrics(finished.directory, "eval"), finished.directory / ADAPTER / "README.md"
    try:
        model_card.write(content, lines, file, prompt=prompt)
    except KeyError as missing:
        finished.note(f"warning: the model card is not written again: run.json has no {missing}")


AFTER = After(is_due=is_due, make=make, check=check)
