"""Interfaces: by what each peer is reached, what gloo and NCCL are told to use, MTU and stated speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loradock.env_check.base import Finding, error, ok, warning
from loradock.env_check.cluster.base import Asked, Crew, Me, Outcome, Peer, Stage, leaders, several
from loradock.env_check.cluster.interfaces import chosen_by_nccl, holder, interfaces, is_loopback, source_of
from loradock.env_check.cluster.introduction import GLOO, NCCL, gloo_address

GIGABIT = 1000
LIMIT_SECONDS = 30.0


def part(me: Me, request: Asked) -> dict[str, Any]:
    """This rank's routes to the peers, and what gloo would offer them."""
    known = interfaces(me.host)
    routes: dict[str, Any] = {}
    for rank, address in request["addresses"].items():
        try:
            source = source_of(address)
        except OSError as failure:
            routes[rank] = {"failure": failure.strerror or str(failure)}
            continue
        by = holder(source, known)
        routes[rank] = {"source": source, "interface": by.name if by else None}
    environ = me.host.environ
    variables = {name: environ[name] for name in (GLOO, NCCL) if environ.get(name)}
    return {
        "routes": routes,
        "gloo": gloo_address(me.host, known),
        "named": variables,
        "absent": [name for name, value in variables.items() if not _is_there(name, value, list(known))],
        "there": sorted(known),
    }


def _is_there(variable: str, value: str, names: list[str]) -> bool:
    return bool(chosen_by_nccl(value, names)) if variable == NCCL else set(value.split(",")) <= set(names)


def look(crew: Crew) -> Outcome:
    """Ask every rank for its routes to the first rank of each other place."""
    heads = leaders(crew.peers.values())
    asks = {
        rank: {"addresses": {str(head.rank): head.address for head in heads if head.place != peer.place}}
        for rank, peer in crew.peers.items()
    }
    answers = crew.ask(asks, limit_seconds=max(LIMIT_SECONDS, crew.timeout_seconds))
    rows = tuple(
        {
            "rank": peer.rank,
            "host": peer.host,
            "address": peer.address,
            "interface": peer.interface,
            "mtu_bytes": peer.mtu_bytes,
            "speed_mbit": peer.speed_mbit,
            "device": peer.device,
        }
        for peer in crew.peers.values()
    )
    return Outcome(findings=tuple(judge(crew.peers, answers)), rows=rows)


def judge(peers: Mapping[int, Peer], answers: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """What stands in the way of a run over several hosts; one ok where nothing does."""
    findings: list[Finding] = []
    is_spread = len({peer.place for peer in peers.values()}) > 1
    for rank, answer in answers.items():
        if "failure" in answer:
            findings.append(error(f"{peers[rank].label}: {answer['failure']}", remedy="ip addr"))
            continue
        findings += _named(peers[rank], answer)
        if is_spread:
            findings += [*_gloo(peers[rank], answer), *_routes(peers[rank], answer, peers)]
    if is_spread:
        findings += [*_mtu(peers), *_slow(peers)]
    if findings:
        return findings
    names = sorted({peer.interface or "no interface" for peer in peers.values()})
    return [ok(f"{len(peers)} ranks reach one another by {several(names)}")]


def _named(peer: Peer, answer: Mapping[str, Any]) -> list[Finding]:
    """A variable that names what is not there."""
    present = ", ".join(answer["there"])
    return [
        error(
            f"{peer.label}: {name} is {answer['named'][name]}, not an interface there ({present})",
            remedy=f"unset {name}, or export {name}={peer.interface or 'eth0'}",
        )
        for name in answer["absent"]
    ]


def _gloo(peer: Peer, answer: Mapping[str, Any]) -> list[Finding]:
    """The name of a host often resolves to its loopback, which gloo then offers to other hosts."""
    offered = answer["gloo"]
    if GLOO in answer["absent"] or (offered and not is_loopback(offered)):
        return []
    why = f"{GLOO} names it" if GLOO in answer["named"] else "the name of its host resolves to nothing else"
    what = f"{peer.label}: gloo would offer {offered or '127.0.0.1'} to the other hosts, because {why}"
    return [error(what, remedy=f"export {GLOO}={peer.interface or 'eth0'}")]


def _routes(peer: Peer, answer: Mapping[str, Any], peers: Mapping[int, Peer]) -> list[Finding]:
    """No route, or one by another interface than the peers are told of."""
    findings: list[Finding] = []
    for rank, route in answer["routes"].items():
        target = peers[int(rank)]
        if "failure" in route:
            what = f"{peer.label} has no route to {target.label}: {route['failure']}"
            findings.append(error(what, remedy=f"ip route get {target.address}"))
        elif peer.interface and route["interface"] not in (peer.interface, None):
            what = f"{peer.label} reaches {target.label} by {route['interface']}, not by the interface of its address"
            findings.append(warning(what, remedy=f"export {GLOO}={route['interface']} {NCCL}={route['interface']}"))
    return findings


def _mtu(peers: Mapping[int, Peer]) -> list[Finding]:
    """An MTU that only some have: large packets are lost or cut on the way."""
    counts = Counter(peer.mtu_bytes for peer in peers.values() if peer.mtu_bytes)
    usual = counts.most_common(1)[0][0] if counts else None
    return [
        warning(
            f"{head.label}: an MTU of {head.mtu_bytes}, and {usual} on the others",
            remedy=f"sudo ip link set {head.interface} mtu {usual}",
        )
        for head in leaders(peers.values())
        if head.mtu_bytes and head.mtu_bytes != usual
    ]


def _slow(peers: Mapping[int, Peer]) -> list[Finding]:
    """An interface that states less than a gigabit: a bad cable or port, most often."""
    return [
        warning(
            f"{head.label}: its link states {head.speed_mbit} Mbit/s",
            remedy=f"sudo ethtool {head.interface}",
        )
        for head in leaders(peers.values())
        if head.speed_mbit and head.speed_mbit < GIGABIT
    ]


STAGE = Stage(
    name="interface",
    proves="Every rank has a route to every host, by an interface that gloo and NCCL will take; MTUs agree.",
    look=look,
    part=part,
)
