"""One rank's share of a collective, in a child that may hang or crash: it says how far it came, and what was wrong."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from loradock.env_check.cluster.base import Me
from loradock.env_check.cluster.rendezvous import Launched, open_store
from loradock.env_check.compute.collective import first_line
from loradock.env_check.compute.places import is_full
from loradock.process import signals

STEPS = (
    "started",
    "reached the store",
    "joined the group",
    "computed its values",
    "exchanged them",
    "summed everything",
)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64")
PERIOD = 251
EXCHANGED = 4 * PERIOD
HALVES = ("float16", "bfloat16")


def bounded(me: Me, *, backend: str, sizes: list[int], attempt: str, limit_seconds: float) -> dict[str, Any]:
    """How it went: "reached" is a place in STEPS, "fault" what failed or None, "wrong_of" the ranks with bad values."""
    context: Any = multiprocessing.get_context("spawn" if backend == "nccl" else "fork")
    pipe, theirs = context.Pipe()
    where = Launched(
        rank=me.rank,
        world_size=me.world_size,
        address=me.store[0],
        port=me.store[1],
        has_agent_store=True,  # whoever opened it, it is open
        prefix=f"{me.prefix}/{attempt}",
    )
    gpu = me.facts.local_rank % len(me.facts.gpus) if me.facts.has_gpu else 0
    process = context.Process(target=_share, args=(theirs, where, backend, gpu, sizes, limit_seconds), daemon=True)
    try:
        with warnings.catch_warnings(), signals.held():
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _followed(pipe, until=time.monotonic() + limit_seconds)
    finally:
        pipe.close()
        process.kill()
        process.join(timeout=5)


def _followed(pipe: Connection, *, until: float) -> dict[str, Any]:
    """What the child says until it has said all, ends, or the time is up."""
    state: dict[str, Any] = {"reached": 0, "fault": None, "wrong_of": []}
    try:
        while pipe.poll(max(0.0, until - time.monotonic())):
            state |= pipe.recv()
            if state["reached"] == len(STEPS) - 1 or state["fault"]:
                return state
    except (EOFError, OSError):
        return state | {"fault": "its process died"}
    return state | {"fault": "it did not finish in time"}


def _share(pipe: Connection, where: Launched, backend: str, gpu: int, sizes: list[int], limit_seconds: float) -> None:
    """The child: join the group, exchange, sum, compare."""
    signals.die_with_parent()
    with open(os.devnull, "w") as nowhere:  # what gloo and NCCL warn of would be between the lines of rank 0
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())
    try:
        pipe.send({"reached": 0})
        device = f"cuda:{gpu}" if backend == "nccl" else "cpu"
        import torch
        import torch.distributed as dist

        if backend == "nccl":
            torch.cuda.set_device(gpu)
        torch.set_num_threads(1)
        store = open_store(where, is_master=False, timeout_seconds=limit_seconds)
        pipe.send({"reached": 1})
        limit = timedelta(seconds=limit_seconds)
        dist.init_process_group(backend, store=store, rank=where.rank, world_size=where.world_size, timeout=limit)
        dist.barrier()
        pipe.send({"reached": 2})
        tensor = values(where.rank, EXCHANGED, "float32", device=device)
        pipe.send({"reached": 3})
        pipe.send({"wrong_of": _exchanged(where, tensor), "reached": 4})
        fault = next(
            (wrong for size in sizes for name in DTYPES if (wrong := _summed(where, device, name, size))), None
        )
        pipe.send({"fault": fault, "reached": 5})
    except Exception as failure:  # noqa: BLE001  whatever it is, it is this rank's answer
        with contextlib.suppress(OSError):
            pipe.send({"fault": "too little memory is free" if is_full(failure) else first_line(failure)})


def values(rank: int, size: int, name: str, *, device: str) -> Any:
    """What a rank brings: whole numbers that this dtype sums exactly, up to 256 ranks. (size,), of that dtype."""
    import torch

    counted = torch.arange(size, device=device)
    expected_value = counted % 2 if name in HALVES else (counted % PERIOD + 1) * (rank + 1)
    return expected_value.to(getattr(torch, name))


def _exchanged(where: Launched, tensor: Any) -> list[int]:
    """The ranks whose values are not what they should be: theirs is the fault, where a sum is wrong for everyone."""
    import torch
    import torch.distributed as dist

    parts = [torch.zeros_like(tensor) for _ in range(where.world_size)]
    dist.all_gather(parts, tensor)
    return [rank for rank, got in enumerate(parts) if not torch.equal(got.cpu(), expected(rank, EXCHANGED))]


def expected(rank: int, size: int) -> Any:
    """What a rank should bring as float32, computed without torch's kernels. (size,) on the CPU."""
    import torch

    return torch.tensor([float((place % PERIOD + 1) * (rank + 1)) for place in range(size)])


def _summed(where: Launched, device: str, name: str, size: int) -> str | None:
    """What is wrong with an all-reduce of this dtype and size; None where nothing is."""
    import torch
    import torch.distributed as dist

    if where.world_size > 256 and name in HALVES:
        return None
    ranks = where.world_size
    summed = values(where.rank, size, name, device=device)
    dist.all_reduce(summed)
    of_one = values(0, size, name, device=device)
    exact_sum = of_one * ranks if name in HALVES else of_one * (ranks * (ranks + 1) // 2)
    return None if torch.equal(summed, exact_sum) else f"the sum of {size} values of {name} is wrong"
