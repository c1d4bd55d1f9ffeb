"""Where the processes of a run meet: the store that rank 0 (or torchrun's agent) keeps, open once all are there."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from loradock.distributed.place import LAST_WORDS
from loradock.distributed.seal import SECRET, SECRET_FILE, Seal, secret_in
from loradock.errors import EnvironmentUnfit, Hung, UsageError
from loradock.facts import Facts
from loradock.process import signals

ATTEMPT_SECONDS = 3.0
STORE_SECONDS = 60.0
POLL_SECONDS = 0.1
BACKLOG = 2048
"""Connections that wait to be taken: every rank of a large run may come at once."""
PATIENCE = timedelta(hours=6)
"""For what the process group itself keeps there; who waits in vain is ended by `distributed.heartbeat`."""


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What stands between this process and the meeting place, and what to do about it."""

    what: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The store for the process group, and a second way to it that nothing else blocks; the host of every rank.

    `seal` signs what stands in `reports`.
    """

    group: Any
    reports: Any
    hosts: tuple[str, ...]
    seal: Seal


def meet(facts: Facts, *, limit_seconds: float) -> Meeting:
    """Wait for all processes of the run, at most so long (0: for ever).

    Raises Hung naming those that did not come, EnvironmentUnfit where rank 0 cannot open the store or leaves, and where
    a process of this machine ended meanwhile, UsageError where nobody said where to meet, KeyboardInterrupt after a
    signal.
    """
    from torch.distributed import DistError, PrefixStore

    place, seal = address(), Seal(key=secret_in(os.environ), start=attempt())
    until = time.monotonic() + limit_seconds if limit_seconds else float("inf")
    stores = [opened(place, until=until, keeps=facts.rank == 0 and not number) for number in range(2)]
    group, reports = PrefixStore(f"group/{attempt()}", stores[0]), PrefixStore(f"reports/{attempt()}", stores[1])
    group.set_timeout(PATIENCE)
    try:
        hosts = all_hosts(reports, facts, place, seal=seal, until=until)
    except DistError as error:
        what = f"rank 0, which keeps {place[0]}:{place[1]}, ended before all ranks had joined"
        raise EnvironmentUnfit(what, hint="read the log of rank 0") from error
    return Meeting(group=group, reports=reports, hosts=hosts, seal=seal)


def all_hosts(store: Any, facts: Facts, place: tuple[str, int], *, seal: Seal, until: float) -> tuple[str, ...]:
    """The host of every rank, once all have said it, signed."""
    keys = [f"host/{rank}" for rank in range(facts.world_size)]
    secret = keys[facts.rank]
    mine = seal.close(secret, socket.gethostname().encode())
    while True:
        store.set(secret, mine)  # again: a stranger may have written there
        if store.check(keys):
            hosts = [seal.open(key, content) for key, content in zip(keys, store.multi_get(keys), strict=True)]
            if None not in hosts:
                return tuple(host.decode() for host in hosts if host is not None)
        pause(until, lambda: missing(store, keys, place, seal=seal))


def address() -> tuple[str, int]:
    """Host and port where rank 0 keeps the store, as launchers say it."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if host and port.isdecimal() and 0 < int(port) < 65536:
        return host, int(port)
    what = f"WORLD_SIZE is more than 1, but MASTER_ADDR={host!r} and MASTER_PORT={port!r} are not a usable address"
    raise UsageError(what, hint="loradock launch --nproc 2 train ..., or unset WORLD_SIZE")


def has_agent_store() -> bool:
    """Whether torchrun's agent keeps the store, and no process of the run has to."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def attempt() -> str:
    """Sets this start of torchrun's apart from an earlier one in the same store."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def opened(place: tuple[str, int], *, until: float, keeps: bool) -> Any:
    """A connection to the store; rank 0's first one keeps it, unless torchrun's agent does."""
    from torch.distributed import DistNetworkError

    keeps = keeps and not has_agent_store()
    while not keeps and (between := obstacle(place)):
        what = f"rank 0 does not answer at {place[0]}:{place[1]}: {between.what}"
        pause(until, lambda what=what, between=between: Hung(what, hint=between.hint))
    try:
        return store_at(place, keeps=keeps, timeout_seconds=STORE_SECONDS)
    except DistNetworkError as error:
        what = f"the rendezvous address {place[0]}:{place[1]} cannot be {'opened' if keeps else 'used'}: {error}"
        raise EnvironmentUnfit(what, hint="another port: loradock launch --rdzv HOST:PORT") from error


def store_at(place: tuple[str, int], *, keeps: bool, timeout_seconds: float) -> Any:
    """The store there, kept by this process or by another one. Raises torch's DistError.

    A store that is kept here listens on the address of the rendezvous alone, where that is one of this machine.
    """
    from torch.distributed import TCPStore

    listening = listener(place) if keeps else None
    return TCPStore(
        *place,
        is_master=keeps,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        master_listen_fd=listening.detach() if listening else None,
    )


def listener(place: tuple[str, int]) -> socket.socket | None:
    """A socket that listens on that address alone; None where others may have to come by another one.

    That is so where it belongs to a device before this machine, and where a name leads to the loopback here and
    elsewhere does not, as Debian's /etc/hosts has it for the machine's own name. None, too, where the name is unknown
    or the port is taken: torch says so.
    """
    try:
        family, _, _, _, (host, *_) = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(host).is_loopback and place[0] not in (host, "localhost"):
            return None
        return socket.create_server((host, place[1]), family=family, backlog=BACKLOG)
    except OSError:
        return None


def obstacle(place: tuple[str, int]) -> Obstacle | None:
    """Why nobody answers there, None where somebody does; rank 0 may come later than this process."""
    try:
        socket.create_connection(place, timeout=ATTEMPT_SECONDS).close()
    except socket.gaierror as failure:
        what = f"the host name cannot be resolved ({failure.strerror})"
        return Obstacle(what=what, hint=f"getent hosts {place[0]}")
    except ConnectionRefusedError:
        what = "connection refused: rank 0 is not running there"
        hint = "start rank 0 on that host, or give every rank the address of rank 0's host (--rdzv or MASTER_ADDR)"
        return Obstacle(what=what, hint=hint)
    except OSError as failure:
        what = f"{reason(failure)}: a wrong address, a broken link or a firewall"
        return Obstacle(what=what, hint=f"ip route get {place[0]}")
    return None


def reason(failure: OSError) -> str:
    """Why a connection failed, in words."""
    return "no answer" if isinstance(failure, TimeoutError) else (failure.strerror or str(failure)).lower()


def pause(until: float, why: Any) -> None:
    """Wait a moment; raises `why()` where the time is up, and where a process of this machine ended."""
    signals.check()
    for rank, word in last_words().items():
        what = f"rank {rank} on this node ended before all ranks had joined: {word['what']}"
        raise EnvironmentUnfit(what, hint="read the log of that rank")
    if time.monotonic() > until:
        raise why()
    time.sleep(POLL_SECONDS)


def missing(store: Any, keys: list[str], place: tuple[str, int], *, seal: Seal) -> Hung:
    """The error that names who did not come, or came with another secret."""
    absent = [rank for rank, key in enumerate(keys) if not store.check([key])]
    present = [rank for rank in range(len(keys)) if rank not in absent]
    unreadable = [rank for rank in present if seal.open(keys[rank], store.get(keys[rank])) is None]
    if absent or not unreadable:
        what = f"{_ranks(absent)} of {len(keys)} did not join at {place[0]}:{place[1]} (limits.setup_seconds)"
        return Hung(what, hint="were they started, with the same --nnodes, --nproc and --rdzv?")
    what = f"{_ranks(unreadable)} of {len(keys)} joined at {place[0]}:{place[1]} with another secret"
    return Hung(what, hint=f"give every node the same {SECRET} (or {SECRET_FILE})")


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def mark_as_told(rank: int) -> None:
    """Tell the launcher that it was not this process that ended the run."""
    if folder := os.environ.get(LAST_WORDS):
        with contextlib.suppress(OSError):  # the launcher names this one then
            Path(folder, f"{rank}.peer").touch()


def last_words() -> dict[int, dict[str, Any]]:
    """How processes of this machine ended, as the launcher saw it: rank -> `code` (128 + a signal) and `what`."""
    folder = os.environ.get(LAST_WORDS)
    if not folder:
        return {}
    return {int(file.stem): json.loads(file.read_text("utf-8")) for file in Path(folder).glob("*.json")}
