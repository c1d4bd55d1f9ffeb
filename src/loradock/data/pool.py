"""Chunks of samples -> chunks of tokens, in this process or over several, in order and with bounded memory."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from loradock.data.cache import Chunk
from loradock.data.formats.base import Conversation, RowError, Sample
from loradock.data.render import Loss, Renderer
from loradock.data.spans import Remark
from loradock.data.special import SpecialTokens
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import Encoder, TokenizerSpec
from loradock.errors import EnvironmentUnfit
from loradock.process import signals

Row = tuple[int | None, Sample]
Refused = list[tuple[int | None, str]]
Result = tuple[Chunk, Refused]
Preparer = Callable[[list[Row]], Result]
IN_FLIGHT_PER_WORKER = 3
NOTHING_LEARNED = "this row has no supervised token: the answer is empty under the chat template"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every row is done to: everything a worker process needs. `date` (YYYY-MM-DD) is today's to the template."""

    spec: TokenizerSpec
    template: ChatTemplate
    loss: Loss
    special_tokens: SpecialTokens = "auto"
    date: str | None = None

    def preparer(self) -> Preparer:
        """See `Work`."""
        return ChunkPreparer(self)


class Work(Protocol):
    """What is done to the rows of a corpus; it is sent to the worker processes."""

    def preparer(self) -> Preparer:
        """What does it, chunk by chunk."""
        ...


class ChunkPreparer:
    """Renders and encodes chunks of rows."""

    def __init__(self, task: Task) -> None:
        self._render = Renderer(
            task.template,
            special_tokens=task.spec.special_tokens,
            end_tokens=task.spec.end_tokens,
            loss=task.loss,
            appends_eos=task.spec.appends_eos,
            date=task.date,
            special_tokens_as=task.special_tokens,
        )
        self._encode = Encoder(task.spec, special_tokens=task.special_tokens)

    def __call__(self, rows: list[Row]) -> Result:
        """Tokens and masks of the rows that can be learned, and what is wrong with the others."""
        refused: Refused = []
        lines: list[int] = []
        lengths: list[int] = []
        ids: list[int] = []
        ranges: list[tuple[int, int]] = []
        special: Counter[str] = Counter()
        remarks: Counter[Remark] = Counter()
        conversations = 0
        for line, sample in rows:
            try:
                rendering = self._render(sample)
                row_ids, row_ranges = self._encode(rendering)
            except RowError as error:
                refused.append((line, str(error)))
                continue
            if not row_ranges:
                refused.append((line, NOTHING_LEARNED))
                continue
            conversations += isinstance(sample, Conversation)
            remarks.update(rendering.remarks)
            special.update(rendering.text[first:last] for first, last in rendering.special_texts)
            ranges += [(len(ids) + first, len(ids) + last) for first, last in row_ranges]
            ids += row_ids
            lengths.append(len(row_ids))
            lines.append(0 if line is None else line)
        made = _chunk(ids, ranges=ranges, lengths=lengths, lines=lines, conversations=conversations, special=special)
        return replace(made, remarks=remarks), refused


def _chunk(
    ids: list[int],
    *,
    ranges: list[tuple[int, int]],
    lengths: list[int],
    lines: list[int],
    conversations: int,
    special: Counter[str],
) -> Chunk:
    supervised = np.zeros(len(ids), dtype=np.uint8)
    for first, last in ranges:
        supervised[first:last] = 1
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, dtype=np.int64)
    learned = np.add.reduceat(supervised, starts, dtype=np.int32) if lengths else np.zeros(0, dtype=np.int32)
    return Chunk(
        ids=np.array(ids, dtype=np.int32),
        supervised=supervised,
        lengths=np.array(lengths, dtype=np.int32),
        learned=learned,
        lines=np.array(lines, dtype=np.int64),
        conversations=conversations,
        special_texts=special,
    )


def prepare_chunks(
    task: Work, *, workers: int, stack: contextlib.ExitStack
) -> Callable[[Iterable[list[Row]]], Iterator[Result]]:
    """A function over chunks, in order; with more than one worker, processes that live as long as `stack`."""
    if workers <= 1:
        preparer = task.preparer()
        return lambda chunks: map(preparer, chunks)
    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(task,)
    )
    stack.callback(executor.shutdown, wait=True, cancel_futures=True)
    return lambda chunks: _over_processes(executor, chunks, in_flight=IN_FLIGHT_PER_WORKER * workers)


def _over_processes(executor: ProcessPoolExecutor, chunks: Iterable[list[Row]], *, in_flight: int) -> Iterator[Result]:
    pending: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            pending.append(executor.submit(_work, chunk))
            if len(pending) >= in_flight:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise EnvironmentUnfit(
            "a process that prepares rows was killed, probably out of memory", hint="--set data.workers=1"
        ) from error


_of_this_process: list[Preparer] = []


def _start(task: Work) -> None:
    signals.leave_group()
    _of_this_process.append(task.preparer())


def _work(rows: list[Row]) -> Result:
    (preparer,) = _of_this_process
    return preparer(rows)
