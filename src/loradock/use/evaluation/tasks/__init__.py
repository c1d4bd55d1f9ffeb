"""The tasks that have a name, in the order of LLM-Adapters' tables. To add one: a `Task` and a place in `TASKS`.

Their data are local files, never fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loradock.errors import InputMissing, UsageError
from loradock.text.suggest import nearest
from loradock.use.evaluation.tasks.base import Task
from loradock.use.evaluation.tasks.boolq import BOOLQ
from loradock.use.evaluation.tasks.completions import HELLASWAG, PIQA, WINOGRANDE
from loradock.use.evaluation.tasks.questions import ARC_CHALLENGE, ARC_EASY, OPENBOOKQA, SIQA

TASKS: tuple[Task, ...] = (BOOLQ, PIQA, SIQA, HELLASWAG, WINOGRANDE, ARC_EASY, ARC_CHALLENGE, OPENBOOKQA)

__all__ = ["TASKS", "Task", "check", "named"]


def named(name: str) -> Task:
    """The task of that name, or of its folder's. UsageError with the closest name where there is none."""
    for task in TASKS:
        if name.lower() in (task.name, task.folder.lower()):
            return task
    names = [task.name for task in TASKS]
    near = nearest(name, names)
    hint = f"--task {near}" if near else "--data FILE --metric exact evaluates on rows of your own"
    raise UsageError(f"unknown task: {name}; known: {', '.join(names)}", hint=hint)


def check(texts: Sequence[str]) -> None:
    """UsageError or InputMissing for a NAME=FILE that names no task, or no file that is there."""
    for text in texts:
        name, _, file = text.partition("=")
        named(name)
        if not Path(file).is_file():
            what = f"{file or 'no file'} of task {name} does not exist"
            raise InputMissing(what, hint=f"{name}=FILE names the rows of the task")
