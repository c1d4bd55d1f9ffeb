"""Clocks: each rank's against rank 0's, by exchanges whose round trip bounds the error (as NTP does, RFC 5905)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loradock.env_check.base import Finding, ok, warning
from loradock.env_check.cluster.base import Asked, Crew, Me, Outcome, Peer, Stage

EXCHANGES = 12
LIMIT_OFFSET_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Offset:
    """How far a clock is ahead of rank 0's, at most wrong by `uncertainty_seconds`."""

    seconds: float
    uncertainty_seconds: float


def part(_me: Me, _asked: Asked) -> dict[str, Any]:
    """What this rank's clock says, in seconds since the epoch."""
    return {"time": time.time()}


def look(crew: Crew) -> Outcome:
    """Each rank in turn; of its exchanges the quickest counts."""
    offsets = {0: Offset(seconds=0.0, uncertainty_seconds=0.0)}
    for rank in sorted(set(crew.peers) - {0}):
        exchanges: list[tuple[float, float, float]] = []
        for _ in range(EXCHANGES):
            sent = time.time()
            answer = crew.ask({rank: {}}, limit_seconds=crew.timeout_seconds)[rank]
            exchanges.append((sent, float(answer["time"]), time.time()))
        offsets[rank] = offset(exchanges)
    rows = tuple(
        {
            "rank": rank,
            "host": crew.peers[rank].host,
            "offset_seconds": round(bounds.seconds, 6),
            "uncertainty_seconds": round(bounds.uncertainty_seconds, 6),
        }
        for rank, bounds in offsets.items()
    )
    return Outcome(findings=tuple(judge(crew.peers, offsets)), rows=rows)


def offset(exchanges: Sequence[tuple[float, float, float]]) -> Offset:
    """From (sent, the other's clock, heard), in seconds: the answer came half a round trip after, give or take that."""
    sent, theirs, heard = min(exchanges, key=lambda answer: answer[2] - answer[0])
    return Offset(seconds=theirs - (sent + heard) / 2, uncertainty_seconds=max(0.0, heard - sent) / 2)


def judge(peers: Mapping[int, Peer], offsets: Mapping[int, Offset]) -> list[Finding]:
    """Clocks that are off by more than a second beyond doubt, from the median clock or from the only other one."""
    middle = statistics.median_low(bounds.seconds for bounds in offsets.values())
    if len(offsets) == 2:
        middle = 0.0
    off = {
        rank: bounds.seconds - middle
        for rank, bounds in offsets.items()
        if abs(bounds.seconds - middle) - bounds.uncertainty_seconds > LIMIT_OFFSET_SECONDS
    }
    remedy = "timedatectl status; on the host: sudo systemctl restart chrony (or systemd-timesyncd)"
    if len(offsets) == 2 and off:
        rank, seconds = next(iter(off.items()))
        what = (
            f"the clock of {peers[rank].label} is {abs(seconds):.1f} s {_side(seconds)} that of {peers[0].label}; "
            "of two clocks it is unknown which is wrong"
        )
        return [warning(what, remedy=remedy)]
    if off:
        return [
            warning(
                f"the clock of {peers[rank].label} is {abs(seconds):.1f} s {_side(seconds)} the median of "
                f"{len(offsets)} clocks",
                remedy=remedy,
            )
            for rank, seconds in off.items()
        ]
    spread = max(bounds.seconds for bounds in offsets.values()) - min(bounds.seconds for bounds in offsets.values())
    doubt = max(bounds.uncertainty_seconds for bounds in offsets.values())
    return [
        ok(
            f"{len(offsets)} clocks agree within {LIMIT_OFFSET_SECONDS:g} s",
            spread_seconds=round(spread, 6),
            uncertainty_seconds=round(doubt, 6),
        )
    ]


def _side(seconds: float) -> str:
    return "ahead of" if seconds > 0 else "behind"


STAGE = Stage(
    name="clock",
    proves="No clock is off by more than a second, beyond what the round trip leaves open.",
    look=look,
    part=part,
)
