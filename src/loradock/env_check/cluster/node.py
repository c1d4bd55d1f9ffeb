"""Nodes: env-check's bench on every rank, in interleaved rounds; who is slow beyond the limit and beyond the noise."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loradock.env_check.base import Check, Finding, ok, warning
from loradock.env_check.bench import CHECKS
from loradock.env_check.child import Child
from loradock.env_check.cluster.base import Asked, Crew, Me, Outcome, Peer, Row, Stage, leaders, several
from loradock.env_check.compare import RATES
from loradock.env_check.gpu_state import suspects
from loradock.env_check.intent import intent
from loradock.env_check.paired_ratio import Ratio, ratio
from loradock.env_check.seen import meanwhile, own_cards

BY_NAME: dict[str, Check] = {check.name: check for check in CHECKS}
OF_GPUS = ("gemm", "memory-bandwidth", "host-to-device")
OF_PROCESSORS = ("gemm", "memory-bandwidth")
DISK = "disk"
GPU_PREFIX = re.compile(r"^gpu\d+_")
LEAST_DEVIATION = 0.005
CAUSE_SECONDS = 30.0
BUSY = 1.5
SPARE_SECONDS = 15.0
ROUNDS_FOR_NOISE = 20
Rates = dict[str, dict[int, list[float]]]
"""Rates by figure and rank, one a round."""


def part(me: Me, request: Asked) -> dict[str, Any]:
    """One check of the bench, or what could make this rank slow."""
    if "causes" in request:
        return {"causes": causes(me)}
    if me.bench is None:
        # A fork keeps the torch that is imported here; a driver that was asked does not survive one.
        me.bench = Child((me.host, me.facts, intent(me.host)), "spawn" if me.facts.has_gpu else "fork")
    me.bench.ask(BY_NAME[request["check"]])
    looked = me.bench.answer()
    if me.bench.is_lost:
        me.bench.close()
        me.bench = None
    worst = next((finding for finding in looked.findings if finding.severity == "error"), None)
    measured = {GPU_PREFIX.sub("", key): rate for finding in looked.findings for key, rate in finding.measured.items()}
    return {"measured": measured, "fault": worst.what if worst else None}


def causes(me: Me) -> list[str]:
    """What of this rank's machine would make it slow."""
    if me.facts.has_gpu:
        gpus = own_cards(me.host, me.facts).values()
        return [cause for gpu in gpus for cause in suspects(meanwhile(me.host, gpu))]
    reasons: list[str] = []
    allowed, quotas = me.host.cpus_allowed(), me.host.cpu_quotas()
    if quotas and min(quotas) < allowed:
        reasons.append(f"its cgroup gives it {min(quotas):.2g} of {allowed} CPUs")
    load = (me.host.read_text("/proc/loadavg") or "0").split()[0]
    if float(load) > BUSY * allowed:
        reasons.append(f"a load of {load} on {allowed} CPUs")
    return reasons


def look(crew: Crew) -> Outcome:
    """All rounds; what looks slow is measured in as many rounds again, and named where both say so."""
    groups = alike(crew.peers)
    checks = {rank: _checks(crew.peers, rank) for rank in crew.peers}
    faults: dict[tuple[int, str], str] = {}
    rates = _measured(crew, checks, faults)
    slow = outliers(rates, groups, limit=crew.limit_percent / 100)
    if slow:
        doubted = {_check_of(figure) for figure, _ in slow}
        repeats = {rank: [name for name in names if name in doubted] for rank, names in checks.items()}
        rates_again = _measured(crew, repeats, faults)
        confirmed = outliers(rates_again, groups, limit=crew.limit_percent / 100)
        slow = {key: rank for key, rank in confirmed.items() if key in slow}
    why = {rank: _why(crew, rank) for rank in sorted({rank for _, rank in slow})}
    findings = judge(crew.peers, slow, why, limit_percent=crew.limit_percent)
    broken = [
        warning(
            f"{crew.peers[rank].label}: {name} was not measured: {fault}", remedy=f"loradock env-check --only {name}"
        )
        for (rank, name), fault in faults.items()
    ]
    mixed = _mixed(groups)
    if not findings and not broken and not mixed:
        findings = [alike_enough(len(crew.peers), rates, groups, limit_percent=crew.limit_percent)]
    return Outcome(findings=(*findings, *broken, *mixed), rows=tuple(rows(rates, groups)))


def _checks(peers: Mapping[int, Peer], rank: int) -> list[str]:
    """What is measured on a rank: a disk by the first rank of each place, where there are several."""
    heads = [head.rank for head in leaders(peers.values())]
    disk = [DISK] if len(heads) > 1 and rank in heads else []
    return [*(OF_GPUS if peers[rank].has_gpu else OF_PROCESSORS), *disk]


def turns(peers: Mapping[int, Peer]) -> list[list[int]]:
    """Ranks with GPUs all at once, as in training; those that share processors one after another."""
    placed: dict[str, list[int]] = {}
    for rank, peer in sorted(peers.items()):
        placed.setdefault(f"{peer.place} {rank if peer.has_gpu else ''}", []).append(rank)
    longest = max(map(len, placed.values()))
    return [[ranks[turn] for ranks in placed.values() if turn < len(ranks)] for turn in range(longest)]


def _measured(crew: Crew, checks: Mapping[int, Sequence[str]], faults: dict[tuple[int, str], str]) -> Rates:
    """Rates of every round; a check that failed on a rank is noted, and not tried again there."""
    rates: Rates = {}
    for _ in range(crew.rounds):
        for turn in turns(crew.peers):
            for name in BY_NAME:
                asks = {rank: {"check": name} for rank in turn if name in checks[rank] and (rank, name) not in faults}
                limit = max(crew.timeout_seconds, BY_NAME[name].limit_seconds + SPARE_SECONDS)
                for rank, answer in (crew.ask(asks, limit_seconds=limit) if asks else {}).items():
                    if fault := answer.get("failure") or answer["fault"]:
                        faults[rank, name] = fault
                        continue
                    for key, rate in answer["measured"].items():
                        if key.endswith(RATES) and rate > 0:
                            rates.setdefault(f"{name} {key}", {}).setdefault(rank, []).append(rate)
    return rates


def alike(peers: Mapping[int, Peer]) -> list[list[int]]:
    """Ranks that compute on the same kind of device: others are not compared."""
    groups: dict[str, list[int]] = {}
    for rank, peer in sorted(peers.items()):
        groups.setdefault(peer.device, []).append(rank)
    return list(groups.values())


def outliers(rates: Rates, groups: Sequence[Sequence[int]], *, limit: float) -> dict[tuple[str, int], Ratio]:
    """How many times faster the others are, by figure and rank, where that is beyond the limit for sure.

    Each round is compared with the median of the others of that round, so that what slows all of them does not count;
    the 95 % interval of the rounds has to lie beyond 1 / (1 - limit) as a whole.
    """
    outliers_of_rank: dict[tuple[str, int], Ratio] = {}
    for figure, by_rank in rates.items():
        for group in groups:
            for rank, entry in _ratios(by_rank, group).items():
                if entry.low is not None and entry.low > 1 / (1 - limit):
                    outliers_of_rank[figure, rank] = entry
    return outliers_of_rank


def _ratios(by_rank: Mapping[int, Sequence[float]], group: Sequence[int]) -> dict[int, Ratio]:
    """How many times faster the others of a group are than each of its ranks, where there are others."""
    rates = {rank: by_rank[rank] for rank in group if rank in by_rank}
    if len(rates) < 2:
        return {}
    return {rank: ratio(_logarithms(rates, rank), least_deviation=LEAST_DEVIATION) for rank in rates}


def _logarithms(rates: Mapping[int, Sequence[float]], rank: int) -> list[float]:
    """Of the ratio of the others' median to this rank's rate, round by round."""
    count = min(map(len, rates.values()))
    rest_of_ranks = [values for peer, values in rates.items() if peer != rank]
    return [
        math.log(statistics.median(values[number] for values in rest_of_ranks) / rates[rank][number])
        for number in range(count)
    ]


def _why(crew: Crew, rank: int) -> list[str]:
    answer = crew.ask({rank: {"causes": True}}, limit_seconds=max(CAUSE_SECONDS, crew.timeout_seconds))[rank]
    return list(answer.get("causes", ()))


def judge(
    peers: Mapping[int, Peer],
    slow: Mapping[tuple[str, int], Ratio],
    why: Mapping[int, Sequence[str]],
    *,
    limit_percent: float,
) -> list[Finding]:
    """One warning for each slow rank, with its figures and what may be the cause."""
    findings: list[Finding] = []
    for rank in sorted({rank for _, rank in slow}):
        slow_figures = {figure: slowdown for (figure, peer), slowdown in slow.items() if peer == rank}
        figures = ", ".join(f"{figure} {1 - 1 / slowdown.value:.0%}" for figure, slowdown in slow_figures.items())
        likely = ", ".join(why.get(rank, ())) or "nothing shows; other load on it"
        what = f"{peers[rank].label} is more than {limit_percent:g} % below the others: {figures}; likely: {likely}"
        checks = ",".join(sorted({_check_of(figure) for figure in slow_figures}))
        findings.append(warning(what, remedy=f"on {peers[rank].host}: loradock env-check --only gpu,{checks}"))
    return findings


def alike_enough(count: int, rates: Rates, groups: Sequence[Sequence[int]], *, limit_percent: float) -> Finding:
    """That nobody is slow, and what the noise would have hidden where that is more than the limit."""
    what = f"{count} ranks: no figure is more than {limit_percent:g} % below the others for sure"
    hidden = {
        figure: 1 - node_ratio.low / node_ratio.value
        for figure, by_rank in rates.items()
        for group in groups
        for node_ratio in _ratios(by_rank, group).values()
        if node_ratio.low is not None
    }
    unsure = [figure for figure, share in hidden.items() if share > limit_percent / 100]
    if unsure:
        what += f"; the noise would hide more than that in {several(unsure)} (--rounds {ROUNDS_FOR_NOISE})"
    return ok(what, noise_percent=round(100 * max(hidden.values(), default=0.0), 2))


def _mixed(groups: Sequence[Sequence[int]]) -> list[Finding]:
    """Ranks on unlike devices cannot be held against one another."""
    if len(groups) == 1:
        return []
    text = "; ".join(f"ranks {', '.join(map(str, group))}" for group in groups)
    what = f"the ranks compute on {len(groups)} kinds of device ({text}): the slowest kind sets the pace"
    return [warning(what, remedy="nvidia-smi -L; lscpu; choose nodes of one kind")]


def rows(rates: Rates, groups: Sequence[Sequence[int]]) -> list[Row]:
    """The median rate of each rank and figure, and how many times faster the others are, with its interval."""
    lines: list[Row] = []
    for figure, by_rank in rates.items():
        for group in groups:
            ratios = _ratios(by_rank, group)
            for rank in (rank for rank in group if rank in by_rank):
                node_ratio = ratios.get(rank)
                lines.append(
                    {
                        "rank": rank,
                        "figure": figure,
                        "median": round(statistics.median(by_rank[rank]), 3),
                        "others_faster": None if node_ratio is None else round(node_ratio.value, 3),
                        "low": None if node_ratio is None or node_ratio.low is None else round(node_ratio.low, 3),
                        "high": None if node_ratio is None or node_ratio.high is None else round(node_ratio.high, 3),
                    }
                )
    return lines


def _check_of(figure: str) -> str:
    return figure.partition(" ")[0]


STAGE = Stage(
    name="node",
    proves="No rank computes, copies or writes more slowly than the others, by the limit and beyond the noise.",
    look=look,
    part=part,
)
