"""Blocks of samples -> chunks of tokens, in this process or over several, in order and with bounded memory."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

from loradock.config.sections.data import SourceConfig
from loradock.data.cache import Chunk
from loradock.data.formats.base import Sample
from loradock.data.problems import Problems
from loradock.errors import EnvironmentUnfit
from loradock.process import signals

Row = tuple[int | None, Sample]
Refused = list[tuple[int | None, str]]
Result = tuple[Chunk, Refused]
Preparer = Callable[[list[Row]], Result]
Known = Callable[["Block"], Chunk | None]
"""The chunk of a block that was prepared before."""
IN_FLIGHT_PER_WORKER = 3


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive rows of a source, and the digest of their samples."""

    rows: list[Row]
    digest: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """A block, what it became, and which of its rows were refused; `is_new` unless it was prepared before."""

    block: Block
    chunk: Chunk
    refused: Refused
    is_new: bool


class NamedTemplate(Protocol):
    """A template by the name that users know."""

    @property
    def name(self) -> str:
        """`auto` is the tokenizer's own."""
        ...


class Work(Protocol):
    """How the rows of one kind of samples become documents as tokens; it is sent to the worker processes."""

    @property
    def template(self) -> NamedTemplate:
        """What texts are rendered with."""
        ...

    @property
    def date(self) -> str | None:
        """Today's (YYYY-MM-DD) to a template that writes it."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """All that tokens depend on besides the rows, for the key of the cache."""
        ...

    @property
    def unread_fields(self) -> frozenset[str]:
        """Optional fields that it makes nothing of: a row in which one of them is wrong is read without it."""
        ...

    def preparer(self) -> Preparer:
        """What does it, chunk by chunk."""
        ...

    def notes(self, manifest: Mapping[str, Any], sources: Sequence[SourceConfig]) -> Iterator[str]:
        """Sentences for the user about how the rows of an entry were prepared."""
        ...

    def check_refusals(self, refusals: Problems) -> None:
        """No row could be prepared: ConfigError where what was asked for is at fault, not the rows."""
        ...


def prepare_blocks(
    task: Work, *, workers: int, stack: contextlib.ExitStack, known: Known
) -> Callable[[Iterable[Block]], Iterator[Done]]:
    """A function over blocks, in order; with more than one worker, processes that live as long as `stack`."""
    if workers <= 1:
        preparer = task.preparer()
        return lambda blocks: (_taken(block, known) or _done(block, preparer(block.rows)) for block in blocks)
    executor = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(task,)
    )
    stack.callback(executor.shutdown, wait=True, cancel_futures=True)
    return lambda blocks: _over_processes(executor, blocks, known=known, in_flight=IN_FLIGHT_PER_WORKER * workers)


def _taken(block: Block, known: Known) -> Done | None:
    chunk = known(block)
    return chunk and Done(block=block, chunk=chunk, refused=[], is_new=False)


def _done(block: Block, result: Result) -> Done:
    chunk, refused = result
    return Done(block=block, chunk=chunk, refused=refused, is_new=True)


def _over_processes(
    executor: ProcessPoolExecutor, blocks: Iterable[Block], *, known: Known, in_flight: int
) -> Iterator[Done]:
    pending: deque[Done | tuple[Block, Future[Result]]] = deque()

    def first() -> Done:
        item = pending.popleft()
        return item if isinstance(item, Done) else _done(item[0], item[1].result())

    try:
        for block in blocks:
            pending.append(_taken(block, known) or (block, executor.submit(_work, block.rows)))
            if len(pending) >= in_flight:
                yield first()
        while pending:
            yield first()
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
