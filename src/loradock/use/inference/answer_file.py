"""`generate`: a file of rows to a file of answers; resumed after a kill, with the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from loradock.data.call_readers import Unread
from loradock.data.formats.base import Completion, Conversation
from loradock.data.formats.fields import RowError, RowsChange
from loradock.data.remedies import command_on
from loradock.data.rows import Rows
from loradock.errors import UsageError
from loradock.use.inference.decoding import Request, answers, batches
from loradock.use.inference.journal import Journal
from loradock.use.inference.opener import Opened
from loradock.use.inference.requests import key_of, sample_of
from loradock.use.inference.sampling import Sampling, seed_of

WINDOW_TASKS = 2_048
"""Answers whose prompts are sorted by length together."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How to answer: the longest answer, samples of each row, how they are drawn, and tokens of a batch."""

    max_new_tokens: int
    samples: int
    sampling: Sampling
    batch_tokens: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """An answer to give: to which row (from 0) and line, the number of the sample, the seed, the prompt, and tools.

    `raw_column` holds a prompt that is asked as it is, though the model has a template for turns; empty: none does.
    """

    row: int
    line: int | None
    key: str
    sample: int
    seed: int
    ids: Sequence[int]
    tools: Sequence[dict[str, Any]] = ()
    raw_column: str = ""

    @property
    def name(self) -> str:
        """By which the journal knows it."""
        return f"{self.key}-{self.sample}"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was written: answers, of which so many are errors, empty or were there before, and generated tokens.

    `remedy`: what to do where empty ones answer prompts without the model's template; else nothing.
    """

    answers: int
    errors: int
    empty: int
    tokens: int
    resumed: int
    remedy: str


def answer_file(
    opened: Opened,
    file: Path,
    output: Path,
    asked: Asked,
    *,
    identity: Mapping[str, Any],
    progress: Callable[[int], None],
) -> Summary:
    """Write a line of JSON for each answer, in the order of rows and samples.

    A batch is made of the same rows in each attempt, so that a resumed file has the bytes of one that was not.
    A prompt that leaves no space for an answer gets a line with its `error`, and is not cut. Raises DataError with
    every bad row before anything is generated, UsageError where `output` exists.
    """
    if output.exists():
        raise UsageError(f"{output} already exists", hint="name a new file with --output")
    tasks = list(read_tasks(opened, file, asked))
    limit = longest(opened)
    fitting = [task for task in tasks if limit is None or len(task.ids) + asked.max_new_tokens <= limit]
    with Journal(output, identity={**identity, **asdict(asked)}, takes=_is_answer) as journal:
        resumed = len(journal.done)
        for start in range(0, len(fitting), WINDOW_TASKS):
            _answer_window(opened, fitting[start : start + WINDOW_TASKS], asked, journal, progress)
        lines = [journal.done.get(task.name) or _too_long(task, limit, asked) for task in tasks]
        journal.finish("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    tokens = sum(line.get("answer_tokens", 0) for line in lines)
    errors = sum("error" in line for line in lines)
    empty = [task for task, line in zip(tasks, lines, strict=True) if line.get("answer_tokens") == 0]
    raw = next((task.raw_column for task in empty if task.raw_column), "")
    return Summary(
        answers=len(lines),
        errors=errors,
        empty=len(empty),
        tokens=tokens,
        resumed=resumed,
        remedy=as_turns(file, raw) if raw else "",
    )


def as_turns(file: Path, column: str) -> str:
    """Why a prompt may be answered with nothing, and the command that makes it a user's turn."""
    change = RowsChange(column=column, jq=".text = .COLUMN | del(.COLUMN)", method="rename_column(COLUMN, 'text')")
    why = f"{column} is given to the model as it is, without its chat template"
    return f"{why}; to ask it as a user's turn: {command_on(str(file), change)}"


def read_tasks(opened: Opened, file: Path, asked: Asked) -> Iterator[Task]:
    """What there is to answer, each sample of a row on its own. DataError with every bad row, after the last."""
    lineage = opened.origin.lineage
    is_chat = lineage.conversations if lineage else opened.prompts.has_template
    readings = lineage.readings if lineage else ()
    rows = Rows(file)
    for place, row in enumerate(rows):
        try:
            row_sample = sample_of(row.values, is_chat=is_chat, readings=readings)
            ids = opened.prompts.prompt_of(row_sample)
        except RowError as error:
            hint = command_on(str(file), error.change) if error.change else None
            rows.refuse(row.file, row.line, str(error), hint=hint)
            continue
        key = key_of(row.values, place)
        tools = row_sample.tools if isinstance(row_sample, Conversation) else ()
        raw = raw_column(row.values, row_sample) if is_chat and opened.prompts.has_template else ""
        for sample in range(asked.samples):
            seed = seed_of(asked.sampling, row=key, sample=sample)
            yield Task(
                row=place, line=row.line, key=key, sample=sample, seed=seed, ids=ids, tools=tools, raw_column=raw
            )
    rows.check()


def raw_column(row: Mapping[str, Any], sample: Conversation | Completion) -> str:
    """The column that is asked as text; empty where turns are."""
    if isinstance(sample, Conversation):
        return ""
    return next((column for column, value in row.items() if value == sample.prompt), "")


def longest(opened: Opened) -> int | None:
    """Positions that the model knows; None where its configuration does not say."""
    return getattr(opened.model.config.get_text_config(), "max_position_embeddings", None)


def _answer_window(
    opened: Opened, tasks: Sequence[Task], asked: Asked, journal: Journal, progress: Callable[[int], None]
) -> None:
    lengths = [len(task.ids) for task in tasks]
    for places in batches(lengths, max_new_tokens=asked.max_new_tokens, batch_tokens=asked.batch_tokens):
        batch = [tasks[place] for place in places]
        if all(task.name in journal.done for task in batch):
            continue
        requests = [Request(ids=task.ids, seed=task.seed) for task in batch]
        replies = answers(opened, requests, max_new_tokens=asked.max_new_tokens, sampling=asked.sampling)
        for task, answer in zip(batch, replies, strict=True):
            counted = {"prompt_tokens": len(task.ids), "answer_tokens": len(answer.ids)}
            called = _calls(opened, answer.ids, task.tools) if task.tools else {}
            line = {**_head(task), "answer": answer.text, **called, "finish_reason": answer.finish, **counted}
            journal.add(task.name, line)
        journal.flush()
        progress(len(journal.done))


def _calls(opened: Opened, ids: Sequence[int], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The calls of a row with tools, as rows have them; or why what begins one is none."""
    syntax = opened.prompts.call_syntax
    if syntax is None:
        return {}
    try:
        calls = syntax.read(opened.written(ids), tools)
    except Unread as error:
        return {"tool_calls_error": str(error)}
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"tool_calls": [{"type": "function", "function": function} for function in functions]}


def _is_answer(line: object) -> bool:
    """Whether this is a line as `_answer_window` journals it."""
    if not isinstance(line, dict):
        return False
    content = cast("dict[str, object]", line)
    counts, texts = ("row", "sample", "seed", "prompt_tokens", "answer_tokens"), ("key", "answer", "finish_reason")
    has_counts = all(type(content.get(name)) is int for name in counts)
    return has_counts and all(isinstance(content.get(name), str) for name in texts)


def _head(task: Task) -> dict[str, Any]:
    return {"row": task.row, "line": task.line, "key": task.key, "sample": task.sample, "seed": task.seed}


def _too_long(task: Task, limit: int | None, asked: Asked) -> dict[str, Any]:
    what = f"a prompt of {len(task.ids)} tokens and an answer of {asked.max_new_tokens} exceed the model's {limit}"
    return {**_head(task), "error": what, "prompt_tokens": len(task.ids)}
