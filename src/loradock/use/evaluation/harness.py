"""EleutherAI's lm-eval with a model that is open already: its tasks, its prompts and its figures, beside ours.

lm-eval is an extra with a lock of its own (docker/requirements-harness.lock). A task's rows are fetched from where the
task says, as lm-eval does; tasks of a folder (`data_files` in their YAML) need no network.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.errors import EnvironmentUnfit, InputMissing, UsageError
from loradock.use.inference.opener import Opened

INSTALL = "pip install --require-hashes --no-deps -r docker/requirements-harness.lock, in a venv of its own"
TOKENS_OF_A_ROW = 1024
"""lm-eval counts a batch in rows, and pads them."""
STDERR = "_stderr"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Tasks by lm-eval's names. `folder`: of further task files; `limit`: rows of each; None: lm-eval's default.

    `batch_tokens`: of a forward pass on a GPU. On a CPU it has one row, which is the fastest: 3.5 rows a CPU second, in
    batches of 16 it is 3.2 (bench/results/evaluate).
    """

    tasks: tuple[str, ...]
    folder: Path | None
    limit: int | None
    num_fewshot: int | None
    has_template: bool
    batch_tokens: int

    def rows_at_once(self, device: str) -> int:
        """Of a forward pass on `cpu` or `cuda`."""
        return 1 if device == "cpu" else max(1, self.batch_tokens // TOKENS_OF_A_ROW)


Measures = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Task -> metric -> `value` and `stderr` (None where lm-eval has none)."""


def check() -> None:
    """EnvironmentUnfit where lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise EnvironmentUnfit("the package lm-eval is not installed", hint=INSTALL)


def tasks_of(asked: Asked) -> Any:
    """lm-eval's TaskManager. UsageError for a name that is no task, group or tag."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager: Any = TaskManager(include_path=str(asked.folder) if asked.folder else None)
    unknown = [name for name in asked.tasks if name not in manager.task_index]
    if unknown:
        what = f"lm-eval has no task {', '.join(unknown)}"
        raise UsageError(what, hint="lm-eval ls tasks lists them; --harness-tasks-dir DIR adds the YAML files of DIR")
    return manager


def measure(opened: Opened, asked: Asked, *, manager: Any) -> Measures:
    """What lm-eval measures of the model as it is now. InputMissing where the rows of a task cannot be read."""
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        manager.load(list(asked.tasks))  # the rows: what fails in there is about them, what fails below is not
    except (OSError, ValueError, LookupError) as error:
        what = f"the rows of {', '.join(asked.tasks)} cannot be read: {error}"
        hint = "lm-eval fetches them by network (unset HF_HUB_OFFLINE), or --harness-tasks-dir names local ones"
        raise InputMissing(what, hint=hint) from error
    rows = asked.rows_at_once(opened.model.device.type)
    model: Any = HFLM(pretrained=opened.model, tokenizer=opened.tokenizer, batch_size=rows)
    with opened.computing():
        results = simple_evaluate(
            model=model,
            tasks=list(asked.tasks),
            task_manager=manager,
            limit=asked.limit,
            num_fewshot=asked.num_fewshot,
            apply_chat_template=asked.has_template,
            log_samples=False,
        )
    return {name: _measures(entry) for name, entry in results["results"].items()}


def _measures(entry: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """An entry of lm-eval's results has keys `acc,none` and `acc_stderr,none`, and others that are no measure."""
    measures_named = {key.partition(","): value for key, value in entry.items() if isinstance(value, float)}
    measures = {}
    for (metric, comma, way), value in measures_named.items():
        if comma and not metric.endswith(STDERR):
            label = metric if way == "none" else f"{metric},{way}"
            measures[label] = {"value": value, "stderr": measures_named.get((f"{metric}{STDERR}", comma, way))}
    return measures


def rows_of(results: Sequence[Measures]) -> list[tuple[str, str, list[Mapping[str, float | None]]]]:
    """(task, metric, [that of each model]) in lm-eval's order."""
    first = results[0]
    return [(task, metric, [result[task][metric] for result in results]) for task in first for metric in first[task]]
