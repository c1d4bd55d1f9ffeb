"""What `train` does once a run is finished: tasks that base and adapter answer, and the merged model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, UsageError
from loradock.files import atomic_io
from loradock.process import signals

if TYPE_CHECKING:
    from loradock.use.evaluation.evaluate import Report

MERGED = "merged"
BATCH_TOKENS = 16_384
Note = Callable[[str], None]
Trusted = tuple[str, ...]


def check(config: RunConfig) -> None:
    """Before anything is trained: ConfigError for a task that is none, InputMissing for a file that is not there."""
    from loradock.use.evaluation import tasks

    try:
        tasks.check(config.evaluation.tasks)
    except UsageError as error:
        raise ConfigError(f"evaluation.tasks: {error.what}", hint=error.hint) from error


def make(config: RunConfig, directory: Path, *, note: Note) -> None:
    """What is missing of it: the same command makes it where a run was finished before, or was stopped here."""
    trusted = (config.model.trust_remote_code,) if config.model.trust_remote_code else ()
    if config.evaluation.tasks and config.objective_spec.answers:
        _evaluate(config.evaluation.tasks, directory, trusted, note)
    if config.after.merge != "none" and not os.path.lexists(directory / MERGED):
        _merge(config.after.merge, directory, trusted, note)


def _evaluate(named: tuple[str, ...], directory: Path, trusted: Trusted, note: Note) -> None:
    """Answer the tasks, and write what came of it into the record and the model card."""
    from loradock.training.run_dir import resume
    from loradock.training.run_dir.paths import RECORD

    record = resume.read(directory)
    if [each["asked"] for each in record.get("tasks", [])] == list(named):
        return
    note(f"evaluating {', '.join(named)}, base and adapter ...")
    with redirect_stdout(sys.stderr):
        found, prompt = _answered(named, directory, trusted)
    record["tasks"] = [{"asked": text, **each} for text, each in zip(named, results(found), strict=True)]
    atomic_io.replace(directory / RECORD, json.dumps(record, indent=2) + "\n")
    write_card(record, directory, prompt, note=note)
    for each in record["tasks"]:
        low, high = each["interval"]
        note(
            f"{each['task']}: {each['base']:.1%} -> {each['adapter']:.1%} of {each['rows']:,} rows "
            f"(difference {100 * each['difference']:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}; "
            f"majority class {each['majority']:.1%})"
        )


def _answered(named: tuple[str, ...], directory: Path, trusted: Trusted) -> tuple[Report, str | None]:
    from loradock.training.run import trained_prompt
    from loradock.use.evaluation import asked, evaluate
    from loradock.use.inference.opener import open_model

    wanted = asked.read(named, folder=None, data=None, options=asked.Options())
    opened = open_model(directory, trusted=trusted)
    folder = evaluate.directory_of(opened.origin, directory)

    def answered(*, has_adapter: bool) -> evaluate.Model:
        return evaluate.evaluate(
            opened,
            wanted,
            given=directory,
            directory=folder,
            batch_tokens=BATCH_TOKENS,
            progress=lambda _, __: signals.check(),
            has_adapter=has_adapter,
        )

    own, base = answered(has_adapter=True), answered(has_adapter=False)
    sources, _ = evaluate.trained_on(opened.origin, ())
    settings = {"protocol": "own", "limit": None, "batch_tokens": BATCH_TOKENS}
    found = evaluate.report(own, wanted, settings=settings, other=base, trained=sources)
    evaluate.write(found, folder)
    is_chat = opened.origin.lineage is None or opened.origin.lineage.conversations
    return found, trained_prompt(opened.tokenizer) if is_chat else None


def results(found: Report) -> list[dict[str, Any]]:
    """The figures of each task, shares of its rows, as the record keeps them."""
    rows: list[dict[str, Any]] = []
    for each in found.results:
        name = each.wanted.items.name
        difference = found.comparisons[name].difference
        score = each.summary.score
        rows.append(
            {
                "task": name,
                "sha256": each.wanted.items.sha256,
                "rows": score.rows,
                "adapter": score.value,
                "base": score.value - difference.difference,
                "difference": difference.difference,
                "interval": [difference.low, difference.high],
                "p": difference.p,
                "chance": each.summary.chance,
                "majority": each.summary.majority,
                "trained_on": len(each.contamination.rows) if each.contamination else None,
            }
        )
    return rows


def write_card(record: dict[str, Any], directory: Path, prompt: str | None, *, note: Note) -> None:
    """The model card with the tasks in it; the one that is there stays where another version's record lacks a part."""
    from loradock.training.observers import model_card
    from loradock.training.run_dir.paths import ADAPTER
    from loradock.training.run_dir.record import metrics

    try:
        model_card.write(record, metrics(directory, "eval"), directory / ADAPTER / "README.md", prompt=prompt)
    except KeyError as missing:
        note(f"warning: the model card is not written again: run.json has no {missing}")


def _merge(onto: Any, directory: Path, trusted: Trusted, note: Note) -> None:
    from loradock.use.merge.job import Asked, prepared
    from loradock.use.merge.run import run

    with redirect_stdout(sys.stderr), prepared(directory, Asked(onto=onto, trusted=trusted)) as job:
        note(f"merging onto the {job.plan.onto} weights: {job.why}")
        run(job, directory / MERGED, is_full=False, progress=lambda _, __: signals.check())
    note(f"merged model: {directory / MERGED}")
