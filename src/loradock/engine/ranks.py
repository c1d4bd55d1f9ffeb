"""What several processes of one run (torchrun) agree on: who goes first, and what the first one found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from loradock.errors import StorageError
from loradock.facts import Facts

T = TypeVar("T")
FIRST_FAILED = 1
PATIENCE = timedelta(hours=6)


def join(facts: Facts, *, asked: str) -> None:
    """Join the process group where there is more than one process; a preparation may take hours, so wait that long.

    `asked` is the configured device: auto, cpu or cuda.
    """
    import torch
    import torch.distributed

    if facts.world_size == 1 or torch.distributed.is_initialized():
        return
    device = "cuda" if facts.has_gpu and asked != "cpu" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(facts.local_rank)
    torch.distributed.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)


def leave() -> None:
    """Leave the process group, where one was joined."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def first_then_all(facts: Facts, work: Callable[[], T]) -> T:
    """Let rank 0 do `work` (filling a cache), then every other process; where it fails, all end."""
    if facts.world_size == 1:
        return work()
    import torch.distributed

    result: T | None = None
    done = [False]
    try:
        if facts.rank == 0:
            result = work()
            done = [True]
    finally:
        torch.distributed.broadcast_object_list(done, src=0)
    if facts.rank == 0:
        return result  # type: ignore[return-value]
    if not done[0]:
        raise SystemExit(FIRST_FAILED)
    return work()


def from_first(facts: Facts, value: T) -> T:
    """The value that rank 0 holds, on every process."""
    if facts.world_size == 1:
        return value
    import torch.distributed

    share: list[Any] = [value]
    torch.distributed.broadcast_object_list(share, src=0)
    return share[0]


def gathered(value: T) -> list[T] | None:
    """On rank 0 the value of every process, in the order of their ranks; None on the others."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return [value]
    is_first = torch.distributed.get_rank() == 0
    values: list[Any] | None = [None] * torch.distributed.get_world_size() if is_first else None
    torch.distributed.gather_object(value, values, dst=0)
    return values


def any_of(flag: bool) -> bool:
    """True where the flag is set on any process."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return flag
    value = torch.tensor([int(flag)])
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return bool(value.item())


def is_cut_off(error: BaseException) -> bool:
    """Whether the error says that another process of the run, or the way to it, is gone."""
    if not isinstance(error, RuntimeError):
        return False
    import torch.distributed

    return isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)  # gloo raises a bare one


@contextmanager
def together(what: str) -> Iterator[None]:
    """Inside, rank 0 may fail alone: then every other process ends with an error that says so, rather than wait."""

    failed = True
    try:
        yield
        failed = False
    finally:
        someone_failed = any_of(failed)
    if someone_failed:
        raise StorageError(f"another process of this run failed at {what}", hint="see what rank 0 says")
