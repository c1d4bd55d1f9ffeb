"""`loradock evaluate --harness`: lm-eval's tasks, with the model that loradock opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from loradock.commands.model_options import opened_model, quiet
from loradock.commands.option_groups import Group
from loradock.commands.page import page
from loradock.commands.paths import LocalPath
from loradock.errors import ModelError, UsageError
from loradock.files.system_errors import storage_error

FILE = "harness.json"
OPTIONS = Group(
    click.option("--harness", metavar="TASK,...", help="Tasks of lm-eval (an extra), by its names and prompts."),
    click.option(
        "--harness-tasks-dir",
        metavar="DIR",
        type=LocalPath(exists=True, file_okay=False),
        help="lm-eval: further tasks, as YAML files.",
    ),
    click.option("--num-fewshot", type=click.IntRange(min=0), metavar="N", help="lm-eval: [default: the task's own]"),
    click.option("--apply-chat-template", "has_template", is_flag=True, help="lm-eval: prompts as chats."),
)
"""Those that only lm-eval has."""


def evaluate_harness(
    model: Path,
    *,
    harness: str,
    harness_tasks_dir: Path | None,
    num_fewshot: int | None,
    has_template: bool,
    limit: int | None,
    output: Path | None,
    base: str | None,
    has_base: bool,
    as_json: bool,
    computing: dict[str, Any],
) -> None:
    """Measure, keep in harness.json and print."""
    quiet()
    from loradock.files import atomic_io
    from loradock.machine import Host
    from loradock.use.evaluation import evaluate
    from loradock.use.evaluation import harness as lm_eval

    lm_eval.check()
    request = lm_eval.Asked(
        tasks=tuple(dict.fromkeys(name.strip() for name in harness.split(",") if name.strip())),
        folder=harness_tasks_dir,
        limit=limit,
        num_fewshot=num_fewshot,
        has_template=has_template,
        batch_tokens=computing.pop("batch_tokens"),
    )
    manager = lm_eval.tasks_of(request)
    with opened_model(model, {**computing, "base": base}) as (opened, status):
        if has_base and not opened.has_adapter:
            raise UsageError(f"{model} is a whole model: there is no base beside it", hint="leave out --base")
        if has_template and not opened.tokenizer.chat_template:
            raise ModelError(f"{model} has no chat template", hint="leave out --apply-chat-template")
        folder = output or evaluate.directory_of(opened.origin, model)
        status.update(f"lm-eval: {harness}")
        results = [lm_eval.measure(opened, request, manager=manager)]
        if has_base:
            status.update(f"lm-eval: {harness}, without adapter")
            with opened.without_adapter():
                results.append(lm_eval.measure(opened, request, manager=manager))
        names = [str(model), *([f"{model} without adapter"] if has_base else [])]
        content = {
            "lm_eval": Host().package_version("lm-eval"),
            "tasks": list(request.tasks),
            "limit": limit,
            "num_fewshot": num_fewshot,
            "apply_chat_template": has_template,
            "digest": opened.origin.digest,
            "dtype": str(opened.dtype).removeprefix("torch."),
            "device": str(opened.model.device),
            "results": dict(zip(names, results, strict=True)),
        }
    text = json.dumps(content, indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_io.replace(folder / FILE, text + "\n")
    except OSError as error:
        raise storage_error(error, folder) from error
    if as_json:
        click.echo(text)
        return
    with page() as screen:
        screen.print(f"lm-eval {content['lm_eval']}, {content['dtype']} on {content['device']}")
        screen.print(_table(names, lm_eval.rows_of(results)))
        screen.print(f"\n{folder / FILE}")


def _table(names: Sequence[str], rows: Sequence[tuple[str, str, Sequence[Mapping[str, float | None]]]]) -> Any:
    from rich.table import Table

    from loradock.analysis.report.figures import Figures

    table = Table(box=None, pad_edge=False)
    for name in ("task", "metric", *names):
        table.add_column(name, justify="left" if name in ("task", "metric") else "right")
    for task, metric, row in rows:
        table.add_row(task, metric, *(_shown(cell["value"], cell["stderr"]) for cell in row))
    return Figures(table)


def _shown(value: float | None, stderr: float | None) -> str:
    return f"{value:.4f}" if stderr is None else f"{value:.4f} ± {stderr:.4f}"
