"""What the processes of a run say of themselves, and the judgement of them: which one is gone, silent or late. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from loradock.distributed.processes import BY_SIGNAL
from loradock.errors import EnvironmentUnfit, Hung, LoradockError

SUSPECT_SECONDS = 3.5
"""Of silence, once the way to a process broke: three reports that did not come."""
LEAVING_SECONDS = 3.0
"""For this process to end in its own way, once another said that it ends."""
WHAT_CHARACTERS = 600
DOING = {"setup": "setting up", "step": "training", "save": "saving"}
BEFORE_A_STEP = {"setup": "while setting up", "step": "in its first step", "save": "while saving"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a process says of itself, once a second.

    `count` rises with every report. `step` is the last one that it made. `quiet_seconds`: since its main thread's last
    sign of life; `waiting_seconds`: since it came to where it waits for all others, 0 where it does not. `code` is how
    it ended, None while it runs; `what` says why, and `is_told`: it only repeats what another process did to it.
    """

    rank: int
    host: str
    count: int = 0
    phase: str = "setup"
    step: int = 0
    quiet_seconds: float = 0.0
    waiting_seconds: float = 0.0
    code: int | None = None
    what: str = ""
    is_told: bool = False

    def as_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({**asdict(self), "what": self.what[:WHAT_CHARACTERS]}).encode()

    @classmethod
    def of(cls, content: bytes) -> Report | None:
        """From JSON; None for what is no report: anybody who reaches the store can write there."""
        try:
            report = _REPORTS.validate_json(content, strict=True)
        except ValueError:
            return None
        return report if report.phase in DOING else None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def where(self) -> str:
        """How far it came."""
        return f"after step {self.step}" if self.step else BEFORE_A_STEP[self.phase]


_REPORTS = TypeAdapter(Report)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The last report of a process; seconds since a new one came, and since it was first heard that it ended."""

    report: Report
    unheard_seconds: float = 0.0
    ended_seconds: float = 0.0


def judged(heard: Sequence[Heard], *, me: int, limit_seconds: float, is_cut_off: bool = False) -> LoradockError | None:
    """Why this process (rank `me`) cannot continue, naming the process that is to blame; None where it can.

    `limit_seconds` is for silence, 0 for ever. `is_cut_off`: a collective failed, so that a few seconds of silence
    tell which process is gone. A process that ended lends its exit code: the run ended for its reason.
    """
    peers = [peer for peer in heard if peer.report.rank != me]
    if ended := [peer for peer in peers if peer.report.code]:
        first = min(ended, key=lambda peer: (peer.report.is_told, -peer.ended_seconds))
        is_due = is_cut_off or first.report.is_told or first.ended_seconds >= LEAVING_SECONDS
        return error_of(first.report) if is_due else None
    limit = SUSPECT_SECONDS if is_cut_off else limit_seconds
    running = [peer for peer in peers if peer.report.code is None]
    if limit and (silent := [peer for peer in running if peer.unheard_seconds > limit]):
        return gone(silent, is_cut_off=is_cut_off, limit_seconds=limit_seconds)
    return late(heard, limit_seconds=limit_seconds) if limit_seconds and not is_cut_off else None


def error_of(report: Report) -> LoradockError:
    """The error that another process ended with, as this one's: of its exit code, and of the class that has it."""
    kinds = {kind.exit_code: kind for kind in LoradockError.__subclasses__()}
    hint = "read the log of that rank; the same command continues from the last checkpoint"
    heard = "last heard of " if (report.code or 0) > BY_SIGNAL else ""  # it could not say how far it came
    message = f"another rank of this run has ended: {report}, {heard}{report.where}: {report.what}"
    error = kinds.get(report.code or 0, EnvironmentUnfit)(report.what if report.is_told else message, hint=hint)
    error.exit_code = report.code or error.exit_code
    return error


def gone(silent: Sequence[Heard], *, is_cut_off: bool, limit_seconds: float) -> LoradockError:
    """The error for processes of which nothing is heard any more: of one host, the one that is silent for longest."""
    worst = max(silent, key=lambda peer: peer.unheard_seconds)
    names = named([peer.report for peer in silent if peer.report.host == worst.report.host])
    step = f", after step {worst.report.step}" if worst.report.step else ""
    was = f"its last report: {DOING[worst.report.phase]}{step}"
    hint = f"look at the logs of {worst.report.host}; the same command continues from the last checkpoint"
    seconds = worst.unheard_seconds
    if is_cut_off:
        what = f"another rank of this run has ended, or cannot be reached: {names}; silent for {seconds:.0f} s"
        return EnvironmentUnfit(f"{what}; {was}", hint=hint)
    return Hung(
        f"no heartbeat from {names} for {seconds:.0f} s (limit {limit_seconds:g} s); {was}",
        hint=f"{hint} (--set limits.peer_seconds={limit_seconds * 2:g} waits longer)",
    )


def late(heard: Sequence[Heard], *, limit_seconds: float) -> LoradockError | None:
    """The error where processes wait for one that is alive and does not come; its own, too."""
    running = [peer.report for peer in heard if peer.report.code is None]
    waiting = [peer for peer in running if peer.waiting_seconds > limit_seconds]
    if not waiting:
        return None
    busy = [peer for peer in running if not peer.waiting_seconds]
    stuck = [peer for peer in busy if peer.phase == "step" and peer.quiet_seconds > limit_seconds]
    more = f"(--set limits.peer_seconds={limit_seconds * 2:g} waits longer)"
    if stuck:
        seconds = max(peer.quiet_seconds for peer in stuck)
        return Hung(
            f"{named(stuck)} made no progress for {seconds:.0f} s {stuck[0].where}, and the others wait "
            f"(limit {limit_seconds:g} s)",
            hint=f"the same command continues from the last checkpoint {more}",
        )
    # Counted from the last that came: a report may be older than that, and they have only just met.
    together_seconds = min(peer.waiting_seconds for peer in running)
    if together_seconds <= limit_seconds:
        return None
    return Hung(
        f"all ranks have waited for each other for {together_seconds:.0f} s {waiting[0].where}: the "
        f"all-reduce is not completing (limit {limit_seconds:g} s)",
        hint=f"check the network between the nodes; the same command continues from the last checkpoint {more}",
    )


def named(reports: Sequence[Report]) -> str:
    """Processes of one host in words."""
    if len(reports) == 1:
        return str(reports[0])
    ranks = ", ".join(str(report.rank) for report in sorted(reports, key=lambda report: report.rank))
    return f"ranks {ranks} on {reports[0].host}"
