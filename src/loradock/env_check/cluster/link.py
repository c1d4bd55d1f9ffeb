"""Links: round trip and MB/s between every pair of hosts, or of ranks where there is one host alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loradock.env_check.base import Finding, error, ok, warning
from loradock.env_check.cluster.base import Asked, Crew, Me, Outcome, Peer, Row, Stage, leaders
from loradock.env_check.cluster.interfaces import is_loopback
from loradock.env_check.cluster.transfer import LIMIT_SECONDS, answerer, caller

ROUNDS = 3
TRIES = 2
"""Of a pair that does not reach one another: each takes seconds."""
SLOW, BROKEN = 1 / 2, 1 / 10
"""A link is named below this share of what the better quarter of links gives, and is an error below that one."""
LATE, LATE_SECONDS, FAR_SECONDS = 3.0, 0.001, 0.01
"""A round trip is named beyond so many times the quicker ones and so much more; between hosts also beyond the last."""
FLOOR_MB_PER_SECOND, CEILING_MB_PER_SECOND, STATED = 50.0, 1000.0, 0.1
"""Between hosts a link is held against a tenth of what its interfaces state, within these bounds."""
MBIT_BYTES = 1e6 / 8
SPARE_SECONDS = 5.0
Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Link:
    """From one rank to another: MB/s (10^6 bytes), and the seconds of a round trip; None where nothing got through."""

    sender: int
    receiver: int
    mb_per_second: float | None
    latency_seconds: float | None
    failure: str = ""


def part(me: Me, request: Asked) -> dict[str, Any]:
    """One side of a pair."""
    return caller(me, **request["call"]) if "call" in request else answerer(me)


def look(crew: Crew) -> Outcome:
    """Every pair three times, the best counts; what looks bad is measured once more before it is named."""
    heads = leaders(crew.peers.values())
    ends = [peer.rank for peer in (heads if len(heads) > 1 else crew.peers.values())]
    links: dict[Pair, Link] = {}
    for number in range(ROUNDS):
        for pairs in rounds(ends):
            _measure(crew, [pair for pair in pairs if number < TRIES or not links[pair].failure], links)
    suspects = {
        (min(measured), max(measured))
        for measured, link in links.items()
        if link in suspicious(crew.peers, links.values())
    }
    for _ in range(ROUNDS):
        for pair in sorted(suspects):
            _measure(crew, [pair] if not links[pair].failure else [], links)
    rates = [link.mb_per_second for link in links.values() if link.mb_per_second]
    crew.slowest_mb_per_second = min(rates, default=None)
    return Outcome(findings=tuple(judge(crew.peers, list(links.values()))), rows=tuple(map(row, links.values())))


def rounds(ends: Sequence[int]) -> Iterator[list[Pair]]:
    """Each pair once, in rounds in which nobody has two (the circle method of tournaments)."""
    circle: list[int | None] = [*ends, *([None] if len(ends) % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        matched = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [
            (min(pair, partner), max(pair, partner))
            for pair, partner in matched
            if pair is not None and partner is not None
        ]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _measure(crew: Crew, pairs: Sequence[Pair], links: dict[Pair, Link]) -> None:
    """Pairs at the same time; the best of what is known and what is seen is kept."""
    asks: dict[int, Asked] = {}
    for low, high in pairs:
        asks[low] = {"call": {"address": crew.peers[high].address, "port": crew.peers[high].port}}
        asks[high] = {"answer": low}
    answers = crew.ask(asks, limit_seconds=LIMIT_SECONDS + SPARE_SECONDS) if asks else {}
    for low, high in pairs:
        failure = answers[low].get("failure") or answers[high].get("failure") or ""
        for sender, receiver in ((low, high), (high, low)):
            link = Link(
                sender=sender,
                receiver=receiver,
                mb_per_second=answers[receiver].get("received"),
                latency_seconds=answers[low].get("seconds"),
                failure=failure,
            )
            links[sender, receiver] = better(links.get((sender, receiver)), link)


def better(known: Link | None, link: Link) -> Link:
    """The best of two measurements; a failure counts where nothing else was ever seen."""
    if known is None or (known.failure and not link.failure):
        return link
    if link.failure:
        return known
    rates = [candidate.mb_per_second for candidate in (known, link) if candidate.mb_per_second is not None]
    seconds = [candidate.latency_seconds for candidate in (known, link) if candidate.latency_seconds is not None]
    return replace(known, mb_per_second=max(rates, default=None), latency_seconds=min(seconds, default=None))


def suspicious(peers: Mapping[int, Peer], links: Any) -> list[Link]:
    """The links that would be named."""
    listed = list(links)
    reference = references(listed)
    return [
        link for link in listed if link.failure or is_slow(link, peers, reference) or is_late(link, peers, reference)
    ]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the better quarter of all links gives: a bad host of three spoils four links of six, and a median.

    Beyond a gigabyte a second one TCP stream tells more of the processors than of the link.
    """

    mb_per_second: float
    latency_seconds: float


def references(links: Sequence[Link]) -> Reference:
    """Of all links that let anything through."""
    rates = [link.mb_per_second for link in links if link.mb_per_second is not None]
    seconds = [link.latency_seconds for link in links if link.latency_seconds is not None]
    return Reference(
        mb_per_second=min(CEILING_MB_PER_SECOND, quartiles[2]) if (quartiles := _quartiles(rates)) else 0.0,
        latency_seconds=quartiles[0] if (quartiles := _quartiles(seconds)) else 0.0,
    )


def _quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else []


def floor(link: Link, peers: Mapping[int, Peer]) -> float:
    """MB/s that a link between hosts should have by itself; 0 on a loopback."""
    ends = (peers[link.sender], peers[link.receiver])
    if ends[0].place == ends[1].place or is_loopback(ends[1].address):
        return 0.0
    stated = [end.speed_mbit for end in ends if end.speed_mbit]
    of_stated = min(stated, default=0) * MBIT_BYTES / 1e6 * STATED
    return min(max(FLOOR_MB_PER_SECOND, of_stated), CEILING_MB_PER_SECOND)


def is_slow(link: Link, peers: Mapping[int, Peer], reference: Reference) -> bool:
    """Whether it carries less than half of what the better links do, or less than any should."""
    if link.mb_per_second is None:
        return False
    return link.mb_per_second < max(reference.mb_per_second * SLOW, floor(link, peers))


def is_late(link: Link, peers: Mapping[int, Peer], reference: Reference) -> bool:
    """Whether a round trip takes far longer than the better ones, or than any between hosts of a run should."""
    if link.latency_seconds is None:
        return False
    usual = reference.latency_seconds
    is_far = floor(link, peers) > 0 and link.latency_seconds > FAR_SECONDS
    return is_far or link.latency_seconds > usual * LATE + LATE_SECONDS


def judge(peers: Mapping[int, Peer], links: Sequence[Link]) -> list[Finding]:
    """Links that let nothing through, slow ones, late ones; where all of a rank's are bad, the rank is named."""
    reference = references(links)
    findings = [
        error(
            f"{peers[link.sender].label} and {peers[link.receiver].label} do not reach one another "
            f"at port {peers[link.receiver].port}: {link.failure}",
            remedy="allow all TCP ports between the hosts of a run, and look at the link between these two",
        )
        for link in links
        if link.failure and link.sender < link.receiver
    ]
    slow = [link for link in links if is_slow(link, peers, reference)]
    findings += _slow(peers, links, slow, reference)
    late = [link for link in links if link.sender < link.receiver and is_late(link, peers, reference)]
    findings += [
        warning(
            f"between {peers[link.sender].label} and {peers[link.receiver].label} a round trip takes "
            f"{_seconds(link.latency_seconds)}; the quicker ones take {_seconds(reference.latency_seconds)}",
            remedy=f"on {peers[link.sender].host}: tracepath {peers[link.receiver].address}",
        )
        for link in late
    ]
    if findings:
        return findings
    figures = {"mb_per_second": round(min(link.mb_per_second or 0 for link in links), 1)} if links else {}
    return [ok(f"{len(links) // 2} pairs reach one another, none far slower than the others", **figures)]


def _slow(
    peers: Mapping[int, Peer], links: Sequence[Link], slow: Sequence[Link], reference: Reference
) -> list[Finding]:
    """By rank where all that one sends or receives is slow and it has several such links; else link by link."""
    findings: list[Finding] = []
    remaining = list(slow)
    for end, way in itertools.product(sorted(peers), ("sends", "receives")):
        links_of_end = [link for link in links if (link.sender if way == "sends" else link.receiver) == end]
        if len(links_of_end) > 1 and all(link in remaining for link in links_of_end):
            what = f"all that {peers[end].label} {way} is slow"
            findings.append(_slowness(what, links_of_end, peers, reference, host=peers[end]))
            remaining = [link for link in remaining if link not in links_of_end]
    for link in remaining:
        what = f"from {peers[link.sender].label} to {peers[link.receiver].label} the link is slow"
        findings.append(_slowness(what, [link], peers, reference, host=peers[link.sender]))
    return findings


def _slowness(
    what: str, links: Sequence[Link], peers: Mapping[int, Peer], reference: Reference, *, host: Peer
) -> Finding:
    best = max(link.mb_per_second or 0.0 for link in links)
    least = max(reference.mb_per_second * SLOW, floor(links[0], peers))
    text = f"{what}: {_rate(best)}, where {_rate(least)} is the least to expect beside the others"
    remedy = f"on {host.host}: ethtool -S {host.interface or 'eth0'}; tc qdisc show dev {host.interface or 'eth0'}"
    return (error if best < least * BROKEN / SLOW else warning)(text, remedy=remedy)


def row(link: Link) -> Row:
    """A link for the table."""
    return {
        "from": link.sender,
        "to": link.receiver,
        "mb_per_second": None if link.mb_per_second is None else round(link.mb_per_second, 2),
        "latency_seconds": None if link.latency_seconds is None else round(link.latency_seconds, 6),
        "failure": link.failure or None,
    }


def _rate(mb_per_second: float) -> str:
    return f"{mb_per_second:.3g} MB/s" if mb_per_second < 1000 else f"{mb_per_second:.0f} MB/s"


def _seconds(seconds: float | None) -> str:
    return f"{(seconds or 0.0) * 1e3:.3g} ms"


STAGE = Stage(
    name="link",
    proves="Every pair of hosts reaches one another directly, and none of the links is far slower than the others.",
    look=look,
    part=part,
)
