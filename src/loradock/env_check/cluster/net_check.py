"""A whole net-check: the ranks meet, rank 0 leads them through the stages, and all of them end with one exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from loradock import __version__
from loradock.env_check.cluster import STAGES
from loradock.env_check.cluster.base import Looked, Lost, Me, Outcome, Report, Stage
from loradock.env_check.cluster.crew import Lead, absences
from loradock.env_check.cluster.introduction import introduction
from loradock.env_check.cluster.member import Ending, serve
from loradock.env_check.cluster.rendezvous import Launched, Lobby, call, listener
from loradock.env_check.cluster.wire import SILENT_SECONDS
from loradock.errors import EnvironmentUnfit, Problem, UsageError
from loradock.facts import Facts
from loradock.machine import Host

FORMAT = "loradock.net-check/1"
RENDEZVOUS = "rendezvous"


def chosen(only: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of these names, in their order; UsageError for one unknown."""
    names = [stage.name for stage in STAGES]
    problems = [Problem(what=f"unknown stage: {name}") for name in only if name not in names]
    if problems:
        raise UsageError("--only names what is not there", hint=f"stages: {', '.join(names)}", problems=problems)
    return tuple(stage for stage in STAGES if not only or stage.name in only)


def lead(
    where: Launched,
    stages: Sequence[Stage],
    *,
    host: Host,
    facts: Facts,
    timeout_seconds: float,
    limit_percent: float,
    rounds: int,
    is_strict: bool,
    progress: Callable[[Looked], None],
) -> tuple[Report, int]:
    """Rank 0: what was found, and the exit code that all ranks take. `progress` is told each stage as it ends."""
    began = time.monotonic()
    lobby = Lobby(where, timeout_seconds=timeout_seconds)
    me = _me(where, host=host, facts=facts, token=lobby.hub.token)
    crew = Lead(me, lobby, timeout_seconds=timeout_seconds, limit_percent=limit_percent, rounds=rounds)
    report = Report(world_size=where.world_size)

    def tell(name: str, outcome: Outcome, since: float) -> None:
        report.looked.append(Looked(stage=name, outcome=outcome, seconds=time.monotonic() - since))
        progress(report.looked[-1])

    remaining = [stage.name for stage in stages]
    name, since, code = RENDEZVOUS, began, EnvironmentUnfit.exit_code
    try:
        tell(name, crew.gather(), since)
        for stage in stages:
            name, since, crew.stage = stage.name, time.monotonic(), stage
            outcome = stage.look(crew)
            remaining.remove(name)
            tell(name, outcome, since)
        severities = ("error", "warning") if is_strict else ("error",)
        code = EnvironmentUnfit.exit_code if report.named(*severities) else 0
    except Lost as lost:
        report.left_out = tuple(stage_name for stage_name in remaining if stage_name != name)
        tell(name, absences(lost), since)
    finally:
        report.peers = dict(crew.peers)
        crew.end(code, [f"{stage}: {finding.what}" for stage, finding in report.named("error", "warning")])
        me.close()
    return report, code


def follow(where: Launched, stages: Sequence[Stage], *, host: Host, facts: Facts, timeout_seconds: float) -> Ending:
    """Every other rank: how it ended. EnvironmentUnfit where rank 0 did not come, died or is silent."""
    channel, hub = call(where, timeout_seconds=timeout_seconds)
    channel.silent_seconds = min(SILENT_SECONDS, timeout_seconds)
    me = _me(where, host=host, facts=facts, token=hub.token)
    try:
        channel.send(introduction(me, channel.connection))
        return serve(me, channel, stages)
    finally:
        channel.close()
        me.close()


def _me(where: Launched, *, host: Host, facts: Facts, token: str) -> Me:
    return Me(
        rank=where.rank,
        world_size=where.world_size,
        host=host,
        facts=facts,
        listener=listener(where.address),
        token=token,
        store=(where.address, where.port),
        prefix=where.prefix,
    )


def as_dict(report: Report, exit_code: int) -> dict[str, Any]:
    """The form for programs."""
    return {
        "format": FORMAT,
        "loradock": __version__,
        "world_size": report.world_size,
        "worst": report.worst,
        "exit_code": exit_code,
        "ranks": [
            {key: value for key, value in asdict(peer).items() if key not in ("place", "port")}
            for peer in report.peers.values()
        ],
        "stages": [
            {
                "stage": look.stage,
                "seconds": round(look.seconds, 3),
                "findings": [asdict(finding) for finding in look.outcome.findings],
                "rows": list(look.outcome.rows),
            }
            for look in report.looked
        ],
        "left_out": list(report.left_out),
    }
