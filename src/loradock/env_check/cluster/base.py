"""The types of a stage: what rank 0 asks of the ranks and judges (`look`), and what each rank does for it (`part`).

Rank 0 leads: its `look(crew)` asks ranks by `crew.ask` and returns an `Outcome`. What a rank does is `part(me, asked)`:
it takes and gives values that JSON holds, bounds its own time, and returns what went wrong under "failure".
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from loradock.env_check.base import SEVERITIES, Finding, Severity
from loradock.facts import Facts
from loradock.machine import Host

if TYPE_CHECKING:
    from loradock.env_check.child import Child

Asked = Mapping[str, Any]
Row = dict[str, str | float | None]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One rank as the others see it. `place` is the same for ranks that share a network namespace of one machine.

    `address` and `port` are where its data listener is reached, `interface` what holds that address; `speed_mbit` is
    what the interface states, None where it states none. `device` is what it computes on.
    """

    rank: int
    host: str
    place: str
    address: str
    port: int
    interface: str | None = None
    mtu_bytes: int | None = None
    speed_mbit: int | None = None
    device: str = "CPU"
    has_gpu: bool = False

    @property
    def label(self) -> str:
        """As findings name it: rank, host, address and interface."""
        return f"rank {self.rank} ({self.host}, {self.address}{f' on {self.interface}' if self.interface else ''})"


@dataclass(kw_only=True)
class Me:
    """This process as a rank: what it is, the socket on which peers reach it, and what its parts keep between asks.

    `store` is (address, port) of the rendezvous store, `token` what a caller has to know.
    """

    rank: int
    world_size: int
    host: Host
    facts: Facts
    listener: socket.socket
    token: str
    store: tuple[str, int]
    prefix: str
    bench: Child | None = None

    def close(self) -> None:
        """End what is kept."""
        self.listener.close()
        if self.bench:
            self.bench.close()
            self.bench = None


class Crew(Protocol):
    """All ranks, as rank 0 leads them."""

    peers: dict[int, Peer]
    limit_percent: float
    rounds: int
    timeout_seconds: float
    slowest_mb_per_second: float | None

    def ask(self, asks: Mapping[int, Asked], *, limit_seconds: float) -> dict[int, dict[str, Any]]:
        """The answers of the ranks that are asked, by rank; raises Lost where one dies, hangs or is silent."""
        ...


class Lost(Exception):
    """Ranks that gave no answer; `how` says by rank what became of them."""

    def __init__(self, how: Mapping[int, str]) -> None:
        super().__init__(", ".join(f"rank {rank} {what}" for rank, what in sorted(how.items())))
        self.how = dict(how)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a stage found, and its figures as rows of a table."""

    findings: tuple[Finding, ...]
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage: its name (its file's), what it proves in a sentence for the docs, and its two sides."""

    name: str
    proves: str
    look: Callable[[Crew], Outcome]
    part: Callable[[Me, Asked], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A stage that was looked at, and how long it took."""

    stage: str
    outcome: Outcome
    seconds: float


@dataclass(kw_only=True)
class Report:
    """All that was found. `left_out` are the stages that a lost rank made impossible."""

    world_size: int
    peers: dict[int, Peer] = field(default_factory=dict[int, Peer])
    looked: list[Looked] = field(default_factory=list[Looked])
    left_out: tuple[str, ...] = ()

    def named(self, *severities: Severity) -> list[tuple[str, Finding]]:
        """(stage, finding) of these severities, in the order in which they were found."""
        return [
            (look.stage, finding)
            for look in self.looked
            for finding in look.outcome.findings
            if finding.severity in severities
        ]

    @property
    def worst(self) -> Severity:
        """The worst severity found."""
        severities = (finding.severity for look in self.looked for finding in look.outcome.findings)
        return SEVERITIES[max(map(SEVERITIES.index, severities), default=0)]


def leaders(peers: Iterable[Peer]) -> list[Peer]:
    """The first rank of each place, in the order of ranks."""
    first: dict[str, Peer] = {}
    for peer in sorted(peers, key=lambda peer: peer.rank):
        first.setdefault(peer.place, peer)
    return list(first.values())


def place_here(boot_id: str) -> str:
    """What is the same for processes of one machine in one network namespace, and differs otherwise."""
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = "?"
    return f"{boot_id.strip()} {namespace}"


def several(labels: Sequence[str]) -> str:
    """One, or one and two, or one, two and three."""
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
