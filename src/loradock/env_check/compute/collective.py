"""An all-reduce of known values over the local GPUs (NCCL), or over two processes on the loopback (gloo)."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import HOLDERS, is_full, used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.process.signals import die_with_parent

LIMIT_SECONDS = 20
# Until every process has imported torch and started its GPU: on a cold disk one may take a minute longer than others.
READY_SECONDS = 100
NUMBERS = 1000
NO_MEMORY = "too little memory is free"
LOOPBACK = "127.0.0.1"
INTERFACE = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
SUSPECT = ("NCCL_P2P_LEVEL", "NCCL_IB_HCA", "NCCL_NET", "NCCL_PROTO", "NCCL_ALGO", "NCCL_SHM_DISABLE")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How an all-reduce went: what each rank said was wrong, None where its result is right.

    `silent` ranks gave no answer in time, `late` ones were not ready to begin.
    """

    backend: str
    ranks: int
    faults: tuple[str | None, ...]
    silent: int = 0
    late: int = 0


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """NCCL where there are several GPUs, those of a run's processes alone where it has several; else gloo."""
    gpus, is_needed = wanted(facts, plan)
    exchange = all_reduce("nccl", len(gpus), gpus=gpus) if len(gpus) > 1 else all_reduce("gloo", 2)
    interfaces = interface_names(host.read_text("/proc/net/dev") or "")
    return [judge(exchange, host.environ, interfaces, is_needed=is_needed)]


def wanted(facts: Facts, plan: Intent) -> tuple[tuple[int, ...], bool]:
    """(the GPUs to try, whether the run has several processes): those of its processes, else all that there are."""
    is_needed = max(facts.world_size, facts.processes_here) > 1
    if not plan.uses_gpu(facts):
        return (), is_needed
    return (used_gpus(facts) if is_needed else tuple(range(len(facts.gpus)))), is_needed


def interface_names(text: str) -> tuple[str, ...]:
    """The network interfaces in the text of /proc/net/dev."""
    return tuple(sorted(line.split(":")[0].strip() for line in text.splitlines() if ":" in line))


def judge(exchange: Exchange, environ: Mapping[str, str], interfaces: Sequence[str], *, is_needed: bool) -> Finding:
    """What the exchange says. It only stops runs of several processes, so it is a warning where there is one."""
    backend, ranks = exchange.backend, exchange.ranks
    fault = next((fault for fault in exchange.faults if fault), None)
    if not fault and exchange.late:
        what = f"{exchange.late} of {ranks} processes were not ready within {READY_SECONDS} s: undecided"
        return warning(f"{what} of {backend}", remedy="loradock env-check --only collective")
    if not fault and not exchange.silent:
        return ok(f"{ranks} processes ran an all-reduce of {NUMBERS} known values by {backend}")
    say = error if is_needed else warning
    suffix = "" if is_needed else " (runs of several processes need it)"
    if fault and fault.startswith(NO_MEMORY):
        return say(f"{backend} was not tried: {fault}{suffix}", remedy=HOLDERS)
    variable = INTERFACE[backend]
    value = environ.get(variable)
    if value:
        is_missing = backend == "gloo" and not set(value.split(",")) <= set(interfaces)
        why = "which is not an interface of this machine" if is_missing else "over which no answer arrived"
        return say(f"{backend} failed: {variable} is {value}, {why}{suffix}", remedy=f"unset {variable}")
    if fault and fault.startswith(LOOPBACK):
        return say(f"{backend} failed: {fault}{suffix}", remedy="ip link set lo up")
    if suspects := [name for name in SUSPECT if backend == "nccl" and name in environ]:
        return say(f"{backend} failed with {', '.join(suspects)} set{suffix}", remedy=f"unset {' '.join(suspects)}")
    if fault:
        remedy = (
            f"export {variable}=lo" if backend == "gloo" else "env NCCL_DEBUG=INFO loradock env-check --only collective"
        )
        return say(f"{backend} failed: {fault}{suffix}", remedy=remedy)
    what = f"{exchange.silent} of {ranks} processes did not finish an all-reduce by {backend}{suffix}"
    remedy = "export NCCL_P2P_DISABLE=1" if backend == "nccl" else f"export {variable}=lo"
    return say(what, remedy=remedy)


def all_reduce(backend: str, ranks: int, *, gpus: Sequence[int] = (), limit_seconds: float = LIMIT_SECONDS) -> Exchange:
    """Sum known values over processes that are ended whatever happens; a rank that says nothing in time is silent.

    The time begins when all are ready. gloo's are forked, which costs no second import of torch; NCCL's, on these
    GPUs, start again, since CUDA does not survive a fork.
    """
    import torch
    from torch.distributed import TCPStore

    try:
        call_loopback()
    except OSError as failure:
        return Exchange(backend=backend, ranks=ranks, faults=(f"{LOOPBACK} does not answer: {failure.strerror}",))
    is_forked = backend == "gloo" and not torch.cuda.is_initialized()
    context: Any = multiprocessing.get_context("fork" if is_forked else "spawn")
    pipes = [context.Pipe() for _ in range(ranks)]
    store_limit = timedelta(seconds=limit_seconds / 2)
    processes = [
        context.Process(target=_rank, args=(theirs, rank, ranks, backend, gpus, store_limit))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    ours = [mine for mine, _ in pipes]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for process in processes:
                process.start()
        for _, theirs in pipes:
            theirs.close()
        starts, late = gathered(ours, READY_SECONDS)
        if late or any(starts):
            return Exchange(backend=backend, ranks=ranks, faults=starts, late=late)
        store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=store_limit)
        for pipe in ours:
            pipe.send(store.port)
        faults, silent = gathered(ours, limit_seconds)
        return Exchange(backend=backend, ranks=ranks, faults=faults, silent=silent)
    except (RuntimeError, OSError) as failure:
        return Exchange(backend=backend, ranks=ranks, faults=(first_line(failure),) * ranks)
    finally:
        for process in processes:
            with contextlib.suppress(ValueError, AttributeError):
                process.kill()
                process.join(timeout=5)


def call_loopback() -> None:
    """Raises OSError where this process cannot reach itself."""
    with socket.create_server((LOOPBACK, 0)) as server:
        socket.create_connection(server.getsockname(), timeout=LIMIT_SECONDS / 4).close()


def gathered(pipes: Sequence[Connection], limit_seconds: float) -> tuple[tuple[str | None, ...], int]:
    """(what each rank said before the time was up, how many said nothing)."""
    ends = time.monotonic() + limit_seconds
    outputs: list[str | None] = []
    silent = 0
    for pipe in pipes:
        try:
            if pipe.poll(max(0.0, ends - time.monotonic())):
                outputs.append(pipe.recv())
                continue
        except (EOFError, OSError):
            outputs.append("a process died")
            continue
        silent += 1
    return tuple(outputs), silent


def _rank(pipe: Connection, rank: int, ranks: int, backend: str, gpus: Sequence[int], store_limit: timedelta) -> None:
    """One process: say when it is ready, sum i * (rank + 1) over the ranks, and say what is wrong with the result."""
    die_with_parent()
    import torch
    import torch.distributed as dist

    device = "cpu"
    try:
        torch.set_num_threads(1)
        if backend == "nccl":
            device = f"cuda:{gpus[rank]}"
            torch.cuda.set_device(gpus[rank])
        counted = torch.arange(NUMBERS, dtype=torch.float32, device=device)
        pipe.send(None)
        store = dist.TCPStore(LOOPBACK, pipe.recv(), is_master=False, timeout=store_limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=store_limit)
        values = counted * (rank + 1)
        dist.all_reduce(values)
        expected = counted * (ranks * (ranks + 1) // 2)
        pipe.send(None if torch.equal(values, expected) else "the sum is wrong")
    except Exception as failure:  # noqa: BLE001  whatever it is, it is this rank's answer
        pipe.send(f"{NO_MEMORY} on {device}" if is_full(failure) else first_line(failure))


def first_line(failure: Exception) -> str:
    """The first line of an error, without the place in torch's source that it begins with; of NCCL's its last error."""
    text = str(failure).strip().rpartition("Last error:")[2].strip()
    line = (text.splitlines() or [type(failure).__name__])[0]
    return line.rpartition("] ")[2][:160]


CHECK = Check(
    name="collective",
    group="compute",
    proves="An all-reduce of known values over the local GPUs, or two processes on the CPU, completes within seconds.",
    look=look,
    level="compute",
    limit_seconds=240,
    depends_on=(*LOADED, "device"),
)
