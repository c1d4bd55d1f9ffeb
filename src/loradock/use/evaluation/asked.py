"""What is asked of an evaluation: which rows, by which method, measured how; checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from loradock.config.sections.data import Reading
from loradock.data.formats.fields import RowError
from loradock.errors import InputMissing, ModelError, UsageError
from loradock.use.evaluation import tasks
from loradock.use.evaluation.items import Item, Items, of_data
from loradock.use.evaluation.methods import Calls, Choice, Generate, LlmAdapters, Loss, Method, Reward
from loradock.use.evaluation.tasks.base import Task
from loradock.use.evaluation.text_metrics import METRICS, exact
from loradock.use.inference.opener import Opened

TASK_TOKENS, DATA_TOKENS, MORE_TOKENS = 32, 256, 8
"""The longest answer of a task, which is a word; of rows of one's own; and beyond the longest right one of `exact`."""
ACCURACY = "accuracy"
NEEDS: dict[str, Literal["candidates", "prompts", "rows", "calls"]] = {
    "choice": "candidates",
    "loss": "rows",
    "calls": "calls",
}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Rows, what they are measured by, and the method of a model that answers them."""

    items: Items
    metric: str
    method: Callable[[Opened], Method]

    @property
    def may_score(self) -> bool:
        """Whether a reward model can do it."""
        return self.method is chosen


@dataclass(frozen=True, kw_only=True)
class Options:
    """How rows are answered, as typed; None: the default of each kind of rows."""

    metric: str = "exact"
    method: Literal["choice", "generate"] | None = None
    protocol: Literal["own", "llm-adapters"] = "own"
    limit: int | None = None
    max_new_tokens: int | None = None


def read(
    texts: Sequence[str],
    *,
    folder: Path | None,
    data: Path | None,
    options: Options,
    readings: Sequence[Reading] = (),
) -> list[Wanted]:
    """The tasks that `named` lists (`boolq=FILE`, or `boolq` in `folder`; with commas too), and rows of one's own.

    `readings`: how the model's training read the columns of such rows. UsageError for options that contradict or name
    no task, InputMissing, DataError with every row that is wrong.
    """
    _check(options, has_data=data is not None)
    chosen_tasks = [
        _task(text, folder=folder, options=options) for part in texts for text in part.split(",") if text.strip()
    ]
    if data:
        chosen_tasks.append(_data(data, options, readings))
    names = [task.items.name for task in chosen_tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is asked for twice", hint="name each task and file once")
    if not chosen_tasks:
        raise UsageError("there is nothing to evaluate on", hint="add --task boolq=FILE, or --data FILE")
    return chosen_tasks


def _check(options: Options, *, has_data: bool) -> None:
    if options.protocol == "own":
        return
    if options.method == "choice":
        raise UsageError("protocol llm-adapters generates its answers", hint="leave out --method, or --protocol")
    if has_data:
        what = "protocol llm-adapters is one for its tasks; figures of two protocols do not belong in one table"
        raise UsageError(what, hint="evaluate --data in a command of its own")
    if options.max_new_tokens:
        raise UsageError("protocol llm-adapters has answers of 32 tokens", hint="leave out --max-new-tokens")


def _task(text: str, *, folder: Path | None, options: Options) -> Wanted:
    name, is_named, path = text.strip().partition("=")
    task = tasks.named(name.strip())
    if not is_named and folder is None:
        what = f"nothing says where the rows of task {task.name} are: data are local, and never fetched"
        raise InputMissing(what, hint=f"--task {task.name}=FILE, or --tasks-dir DIR")
    file = Path(path) if is_named else task.file_in(folder or Path())
    if not file.is_file():
        raise InputMissing(f"{file} does not exist", hint=f"--task {task.name}=FILE names the rows of the task")
    return Wanted(items=task.read(file, limit=options.limit), metric=ACCURACY, method=_of_task(task, options))


def _of_task(task: Task, options: Options) -> Callable[[Opened], Method]:
    if options.protocol == "llm-adapters":
        return partial(LlmAdapters, task=task)
    if options.method != "generate":
        return chosen
    most = options.max_new_tokens or TASK_TOKENS
    return partial(Generate, max_new_tokens=most, extract=task.extract, score=exact)


def chosen(opened: Opened) -> Method:
    """A choice among candidates: by reward where the model is a reward model, else by log-probability."""
    return Reward(opened) if opened.scores else Choice(opened)


def _data(file: Path, options: Options, readings: Sequence[Reading]) -> Wanted:
    needs = NEEDS.get(options.metric, "prompts")
    items = of_data(file, needs=needs, limit=options.limit, readings=readings)
    if options.metric == "choice":
        return Wanted(items=items, metric=ACCURACY, method=chosen)
    if options.metric == "loss":
        return Wanted(items=items, metric="loss", method=Loss)
    if options.metric == "calls":
        most = options.max_new_tokens
        return Wanted(items=items, metric="calls", method=lambda opened: _calls(opened, items, most))

    def method(opened: Opened) -> Method:
        most = options.max_new_tokens or (longest(opened, items) if options.metric == "exact" else DATA_TOKENS)
        return Generate(opened, max_new_tokens=most, score=METRICS[options.metric])

    return Wanted(items=items, metric=options.metric, method=method)


def _calls(opened: Opened, items: Items, most: int | None) -> Calls:
    """At least what the longest right answer takes: calls may be longer than texts."""
    if opened.prompts.call_syntax is None:
        what = f"nothing reads calls of tools in what the chat template ({opened.prompts.template.name}) writes"
        raise ModelError(
            what,
            hint="--metric rouge-l compares the text; loradock train --set data.tools=text learns readable calls",
        )
    if most is None:
        lengths = [_learned_tokens(opened, item) for item in items.items]
        most = max(DATA_TOKENS, MORE_TOKENS + max(lengths))
    return Calls(opened, max_new_tokens=most)


def _learned_tokens(opened: Opened, item: Item) -> int:
    """Tokens of the right answer as training learns it; DATA_TOKENS where the row is refused, which is told later."""
    try:
        _, learned = opened.prompts.row(item.sample)
    except RowError:
        return DATA_TOKENS
    first, last = learned[-1]
    return last - first


def longest(opened: Opened, items: Items) -> int:
    """Tokens of the longest right answer, and a few: what goes beyond them is another answer."""
    return MORE_TOKENS + max(len(opened.prompts.raw(item.answer)) for item in items.items)
