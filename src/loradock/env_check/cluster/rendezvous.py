"""How the ranks find one another: the launcher's store, then a connection of each rank to rank 0.

Rank 0 opens the store at MASTER_ADDR:MASTER_PORT, or uses that of torchrun's agent, and writes there on which port it
listens; from then on the ranks talk over their own connections, whose every wait has an end. A store is asked from a
thread that may hang: torch bounds some of its calls only.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from loradock.distributed import rendezvous as meeting
from loradock.env_check.cluster.wire import Channel, Gone
from loradock.errors import EnvironmentUnfit, UsageError
from loradock.facts import Facts
from loradock.machine import Host
from loradock.text.terminal import first_line

T = TypeVar("T")
POLL_SECONDS = 0.2
CALL_SECONDS = 3.0
SPARE_SECONDS = 5.0
HUB, FAULT = "hub", "fault"


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What the launcher says. `prefix` sets this start apart from an earlier one in the same store."""

    rank: int
    world_size: int
    address: str
    port: int
    has_agent_store: bool
    prefix: str


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where rank 0 listens, and what a caller has to know."""

    port: int
    token: str


def launched(host: Host, facts: Facts) -> Launched:
    """From the environment; UsageError where no launcher set it, EnvironmentUnfit where it contradicts itself."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not host.environ.get(name)]
    if missing or facts.world_size < 2:
        what = f"net-check needs several ranks: {', '.join(missing) + ' not set' if missing else 'WORLD_SIZE is 1'}"
        raise UsageError(what, hint="loradock launch --nproc 2 net-check, or loradock net-check --nproc 2")
    if facts.rank >= facts.world_size:
        what = f"RANK is {facts.rank}, and WORLD_SIZE only {facts.world_size}"
        raise EnvironmentUnfit(what, hint="give each process a RANK from 0 to WORLD_SIZE - 1")
    address, port = meeting.address()
    return Launched(
        rank=facts.rank,
        world_size=facts.world_size,
        address=address,
        port=port,
        has_agent_store=meeting.has_agent_store(),
        prefix=f"loradock-net-check/{meeting.attempt()}",
    )


def within(work: Callable[[], T], *, limit_seconds: float, what: str) -> T:
    """What `work` returns or raises, done in a thread that is left behind where it hangs: then EnvironmentUnfit."""
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as failure:  # noqa: BLE001  raised again below
            failed.append(failure)

    thread = threading.Thread(target=run, daemon=True, name="net-check store")
    thread.start()
    thread.join(timeout=limit_seconds)
    if failed:
        raise failed[0]
    if not results:
        raise EnvironmentUnfit(what, hint="see whether rank 0 still runs there: it may be stopped or hung")
    return results[0]


def open_store(where: Launched, *, is_master: bool, timeout_seconds: float) -> Any:
    """The store under this start's prefix. Raises torch's DistError."""
    from torch.distributed import PrefixStore

    store = meeting.store_at((where.address, where.port), keeps=is_master, timeout_seconds=timeout_seconds)
    return PrefixStore(where.prefix, store)


class Lobby:
    """Rank 0's side: it keeps the store open, and takes the ranks in."""

    def __init__(self, where: Launched, *, timeout_seconds: float) -> None:
        place = f"rank 0 ({socket.gethostname()})"
        try:
            self.store = within(
                lambda: open_store(where, is_master=not where.has_agent_store, timeout_seconds=timeout_seconds),
                limit_seconds=timeout_seconds + SPARE_SECONDS,
                what=f"{place}: the store at {where.address}:{where.port} does not answer",
            )
        except RuntimeError as failure:  # torch's own are of this kind
            why = "the port is in use" if "EADDRINUSE" in str(failure) else first_line(failure)[:160]
            raise EnvironmentUnfit(
                f"{place} cannot open the store at port {where.port}: {why}",
                hint="export MASTER_PORT=29501 on every rank, or end what holds the port: ss -ltnp",
            ) from failure
        self.hub = Hub(port=0, token=secrets.token_hex(8))
        self.listener = listener(where.address)
        self.hub = Hub(port=self.listener.getsockname()[1], token=self.hub.token)
        self.store.set(HUB, json.dumps({"port": self.hub.port, "token": self.hub.token}))

    def take(self, seconds: float) -> tuple[Channel, dict[str, Any]] | None:
        """A rank that comes within this time and says who it is; None where none does. A stranger is sent away."""
        self.listener.settimeout(seconds)
        try:
            connection, _ = self.listener.accept()
        except (TimeoutError, OSError):
            return None
        channel = Channel(connection)
        try:
            hello = channel.receive(until=time.monotonic() + CALL_SECONDS)
        except Gone:
            hello = None
        if not hello or hello.get("token") != self.hub.token:
            channel.close()
            return None
        return channel, hello

    def fault_of(self, rank: int) -> str | None:
        """What a rank that reaches the store alone left there."""
        key = f"{FAULT}/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else None


def listener(address: str) -> socket.socket:
    """A listening socket on every interface, of the family that MASTER_ADDR has."""
    try:
        family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        family = socket.AF_INET
    if family == socket.AF_INET6 and socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=family, dualstack_ipv6=True, backlog=256)
    return socket.create_server(("", 0), backlog=256)


def call(where: Launched, *, timeout_seconds: float) -> tuple[Channel, Hub]:
    """A rank's side: its connection to rank 0. EnvironmentUnfit says what stands in between, by rank and host."""
    place = f"rank {where.rank} ({socket.gethostname()})"
    until = time.monotonic() + timeout_seconds
    _wait_for_port(where, place, until=until)
    silent = f"{place}: the store at {where.address}:{where.port} does not answer"
    try:
        store = within(
            lambda: open_store(where, is_master=False, timeout_seconds=timeout_seconds),
            limit_seconds=timeout_seconds + SPARE_SECONDS,
            what=silent,
        )
        hub = within(lambda: _hub(store, until), limit_seconds=timeout_seconds + SPARE_SECONDS, what=silent)
    except RuntimeError as failure:
        why = first_line(failure)[:160]
        raise EnvironmentUnfit(f"{silent}: {why}", hint=f"see what rank 0 says on {where.address}") from failure
    try:
        connection = socket.create_connection((where.address, hub.port), timeout=CALL_SECONDS)
    except OSError as failure:
        what = (
            f"{place} reaches port {where.port} of {where.address}, but not port {hub.port}, which rank 0 opened "
            f"there ({meeting.reason(failure)}): a firewall is between them, and gloo and NCCL need such ports"
        )
        store.set(f"{FAULT}/{where.rank}", what)
        raise EnvironmentUnfit(what, hint="allow all TCP ports between the hosts of a run") from failure
    return Channel(connection), hub


def _hub(store: Any, until: float) -> Hub:
    store.wait([HUB], timedelta(seconds=max(1.0, until - time.monotonic())))
    return Hub(**json.loads(store.get(HUB)))


def _wait_for_port(where: Launched, caller: str, *, until: float) -> None:
    """Until the store's port takes a connection."""
    began, place = time.monotonic(), f"MASTER_ADDR {where.address}, MASTER_PORT {where.port}"
    while between := meeting.obstacle((where.address, where.port)):
        if time.monotonic() >= until:
            waited = f"{caller} did not reach rank 0 at {place} in {until - began:.0f} s"
            raise EnvironmentUnfit(f"{waited}; {between.what}", hint=between.hint)
        time.sleep(POLL_SECONDS)
