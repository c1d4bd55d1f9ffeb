"""What several processes of one run (torchrun) agree on: who goes first, and what the first one found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from loradock.config.schema import RunConfig
from loradock.distributed import rendezvous
from loradock.distributed.heartbeat import Peers
from loradock.errors import Interrupted, LoradockError
from loradock.facts import Facts
from loradock.process import signals

T = TypeVar("T")


class PeerFailed(RuntimeError):
    """Another process could not do its part; which one and why, its last word says."""


@contextmanager
def joined(facts: Facts, *, config: RunConfig) -> Iterator[Peers | None]:
    """Inside, the process group is there, and its processes watch one another; None where there is only one.

    A preparation may take hours, so the group waits that long; `limits.peer_seconds` is for one that says nothing.
    """
    if facts.world_size == 1:
        yield None
        return
    meeting = rendezvous.meet(facts, limit_seconds=config.limits.setup_seconds)
    peers = Peers(meeting, rank=facts.rank, limit_seconds=config.limits.peer_seconds)
    peers.start()
    is_on_gpu = facts.has_gpu and config.device != "cpu"
    try:
        enter_group(facts, meeting.group, is_on_gpu=is_on_gpu)
        yield peers
        peers.leave(None)
    except BaseException as error:
        ended = last_word(error, peers)
        is_told = is_cut_off(error) or is_cut_off(error.__cause__)
        peers.leave(ended, is_told=is_told)
        if ended is error:
            raise
        raise ended from error
    finally:
        leave_group()


def enter_group(facts: Facts, store: Any, *, is_on_gpu: bool) -> None:
    """Make the process group: gloo, and NCCL where there are GPUs."""
    import torch
    import torch.distributed

    if is_on_gpu:
        torch.cuda.set_device(facts.local_rank)
        # By default torch aborts the process where another one is gone, before anybody could say which one.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    with own_stdout():
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if is_on_gpu else "gloo",
            store=store,
            rank=facts.rank,
            world_size=facts.world_size,
            timeout=rendezvous.PATIENCE,
        )


@contextmanager
def own_stdout() -> Iterator[None]:
    """Inside, what native code prints (gloo: who is connected) is dropped, or goes to stderr where it is asked for."""
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    elsewhere = os.dup(2) if os.environ.get("TORCH_CPP_LOG_LEVEL") == "INFO" else os.open(os.devnull, os.O_WRONLY)
    os.dup2(elsewhere, 1)
    os.close(elsewhere)
    try:
        yield
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


def leave_group() -> None:
    """Leave the process group, where one was joined."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def last_word(error: BaseException, peers: Peers) -> LoradockError:
    """What a process says that ends with this."""
    if isinstance(error, LoradockError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"stopped by {signals.requested() or 'a signal'}")
    return blamed(error, peers) or LoradockError(f"unexpected {type(error).__name__}: {error}")


def blamed(error: BaseException, peers: Peers | None) -> LoradockError | None:
    """Where the error says that another process is gone: the one that names it. A signal here explains more."""
    return peers.blamed() if peers and is_cut_off(error) and not signals.requested() else None


def first_then_all(facts: Facts, work: Callable[[], T]) -> T:
    """Let rank 0 do `work` (filling a cache), then every other process; where it fails, all end."""
    if facts.world_size == 1:
        return work()
    import torch.distributed

    result: T | None = None
    answers = [False]
    try:
        if facts.rank == 0:
            result = work()
            answers = [True]
    finally:
        torch.distributed.broadcast_object_list(answers, src=0)
    if facts.rank == 0:
        return result  # type: ignore[return-value]
    if not answers[0]:
        raise PeerFailed("rank 0 failed")
    return work()


def from_first(facts: Facts, value: T) -> T:
    """The value that rank 0 holds, on every process."""
    if facts.world_size == 1:
        return value
    import torch.distributed

    share: list[Any] = [value]
    torch.distributed.broadcast_object_list(share, src=0)
    return share[0]


def worst(facts: Facts, values: tuple[int, ...]) -> tuple[int, ...]:
    """Place by place the least of what the processes have, on every process."""
    if facts.world_size == 1:
        return values
    of_all = gathered(values)
    return from_first(facts, tuple(min(value) for value in zip(*of_all, strict=True)) if of_all else values)


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


def first_word(text: str | None) -> str | None:
    """On every process the text of the first one that has any, and which it is; None where none has."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return text
    texts: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(texts, text)
    return next((f"rank {rank}: {text}" for rank, text in enumerate(texts) if text), None)


def all_of(value: float) -> list[float]:
    """The value of every process, in the order of their ranks."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return [value]
    values = [torch.zeros(1, dtype=torch.float64) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(values, torch.tensor([value], dtype=torch.float64))
    return [float(value) for value in values]


def by_name(seconds: float, peers: Peers | None) -> dict[str, float] | None:
    """The value of every process under `RANK@HOST`; None where there is only one process."""
    if peers is None:
        return None
    return {f"{rank}@{peers.hosts[rank]}": round(value, 6) for rank, value in enumerate(all_of(seconds))}


@contextmanager
def waiting(peers: Peers | None) -> Iterator[None]:
    """Inside, this process is where it waits for all the others."""
    with peers.waiting() if peers else nullcontext():
        yield


def is_cut_off(error: BaseException | None) -> bool:
    """Whether the error says that another process of the run, or the way to it, is gone."""
    if isinstance(error, PeerFailed):
        return True
    if not isinstance(error, RuntimeError):
        return False
    import torch.distributed

    return isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)  # gloo raises a bare one


@contextmanager
def together(what: str) -> Iterator[None]:
    """Inside, a process may fail alone: then every other one ends for its reason, rather than wait."""

    failed = True
    try:
        yield
        failed = False
    finally:
        someone_failed = any_of(failed)
    if someone_failed:
        raise PeerFailed(f"another rank failed at {what}")
