"""All-reduce: known values summed by gloo, and by NCCL where every rank has a GPU; who holds it up, who spoils it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loradock.env_check.base import Finding, error, ok
from loradock.env_check.cluster.base import Asked, Crew, Me, Outcome, Peer, Stage, several
from loradock.env_check.cluster.collective import STEPS, bounded

SIZES = (1, 1000, 262_147)
LARGEST_BYTES = 8
PATIENCE_SECONDS = 5.0
SPARE_SECONDS = 10.0
REMEDIES = {
    "gloo": "export GLOO_SOCKET_IFNAME=eth0 (the interface between the hosts) on every rank",
    "nccl": "env NCCL_DEBUG=INFO loradock net-check --only all-reduce",
}


def part(me: Me, request: Asked) -> dict[str, Any]:
    """This rank's share."""
    return bounded(
        me,
        backend=request["backend"],
        sizes=list(request["sizes"]),
        attempt=request["attempt"],
        limit_seconds=request["limit_seconds"],
    )


def look(crew: Crew) -> Outcome:
    """Each backend in turn. Sizes that the slowest link would take long for are left out."""
    backends = ["gloo", *(["nccl"] if all(peer.has_gpu for peer in crew.peers.values()) else [])]
    sizes = fitting(crew.slowest_mb_per_second)
    findings: list[Finding] = []
    for backend in backends:
        options = {"backend": backend, "sizes": sizes, "attempt": backend, "limit_seconds": crew.timeout_seconds}
        answers = crew.ask(dict.fromkeys(crew.peers, options), limit_seconds=crew.timeout_seconds + SPARE_SECONDS)
        findings += judge(backend, sizes, crew.peers, answers)
    return Outcome(findings=tuple(findings))


def fitting(slowest_mb_per_second: float | None) -> list[int]:
    """The sizes whose bytes the slowest link carries within seconds; the smallest in any case."""
    carried = PATIENCE_SECONDS * 1e6 * slowest_mb_per_second if slowest_mb_per_second else float("inf")
    return [size for size in SIZES if size == SIZES[0] or size * LARGEST_BYTES <= carried]


def judge(
    backend: str, sizes: list[int], peers: Mapping[int, Peer], answers: Mapping[int, Mapping[str, Any]]
) -> list[Finding]:
    """Who brought wrong values, else who fell behind the others, else what they all say."""
    remedy = REMEDIES[backend]
    wrong = sorted({bad for answer in answers.values() for bad in answer.get("wrong_of", ())})
    if wrong:
        names = several([peers[rank].label for rank in wrong])
        return [
            error(f"{backend}: the values of {names} arrive wrong", remedy="loradock env-check --level compute there")
        ]
    faults = {
        rank: answer.get("failure") or answer["fault"]
        for rank, answer in answers.items()
        if answer.get("failure") or answer["fault"]
    }
    if not faults:
        return [ok(f"{len(peers)} ranks sum known values by {backend}, up to {max(sizes)} of each dtype")]
    died = [rank for rank, fault in faults.items() if fault == "its process died"]
    reached = {rank: answer.get("reached", 0) for rank, answer in answers.items()}
    behind = [rank for rank in reached if reached[rank] == min(reached.values())]
    suspects = died or behind
    if len(suspects) == len(peers):
        first = min(faults)
        where = f"after it had {STEPS[reached[first]]}"
        return [error(f"{backend} fails on every rank; {peers[first].label}, {where}: {faults[first]}", remedy=remedy)]
    return [
        error(f"{backend}: {peers[rank].label} {_came(reached[rank], faults.get(rank))}", remedy=remedy)
        for rank in suspects
    ]


def _came(step: int, fault: str | None) -> str:
    """How far a rank came, and what it says."""
    return f"had {STEPS[step]}, and no more: {fault or 'it says nothing'}"


STAGE = Stage(
    name="all-reduce",
    proves="gloo, and NCCL where every rank has a GPU, sum known values of several sizes and dtypes exactly.",
    look=look,
    part=part,
)
