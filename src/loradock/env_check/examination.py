"""A whole examination: which checks to run, and what they found together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loradock import __version__
from loradock.env_check import CHECKS, GROUPS
from loradock.env_check.base import LEVELS, SEVERITIES, Check, Finding, Intent, Level, Severity
from loradock.env_check.child import Looked, answered
from loradock.env_check.kept import Kept, Provenance
from loradock.env_check.node import Node, node
from loradock.env_check.runner import run
from loradock.errors import (
    ConfigError,
    DataError,
    EnvironmentUnfit,
    HubError,
    InputMissing,
    LoradockError,
    ModelError,
    NoCheckpoint,
    Problem,
    UsageError,
)
from loradock.facts import Facts
from loradock.machine import Host, probe
from loradock.machine.answers import GpuState
from loradock.text.suggest import did_you_mean

FORMAT = "loradock.env-check/2"
NEEDS = {"nothing": "", "gpu": "a GPU", "config": "--config"}
GPUS_SECONDS = 30.0
CANNOT_TRAIN, NOT_AS_CONFIGURED = "this machine cannot train", "the run cannot start as it is configured"
OF_SETTINGS = frozenset(
    error_type.exit_code
    for error_type in (UsageError, DataError, InputMissing, HubError, ConfigError, ModelError, NoCheckpoint)
)
"""What ends a run for its model, its data or a setting, as they are named or as they lie there."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What a machine was found to be. `gpus` are its GPUs as they were when the last check had ended.

    `left_out` are the checks that were asked for and need what is not there: a GPU or a configuration. `provenance`
    says what was known before; None where all was computed.
    """

    level: Level
    looked: tuple[Looked, ...]
    facts: Facts
    seconds: float
    node: Node = field(default_factory=lambda: Node(name="?"))
    gpus: tuple[GpuState, ...] = ()
    left_out: tuple[Check, ...] = ()
    provenance: Provenance | None = None

    @property
    def findings(self) -> tuple[tuple[Check, Finding], ...]:
        """Every finding with its check, in the order of the groups, then of the table."""
        order = {group: place for place, group in enumerate(GROUPS)}
        looked = sorted(self.looked, key=lambda look: (order[look.check.group], CHECKS.index(look.check)))
        return tuple((look.check, finding) for look in looked for finding in look.findings)

    @property
    def worst(self) -> Severity:
        """The worst severity found."""
        return SEVERITIES[max((SEVERITIES.index(finding.severity) for _, finding in self.findings), default=0)]

    @property
    def exit_code(self) -> int:
        """That of the first error, 0 where there is none."""
        return next((finding.exit_code for _, finding in self.findings if finding.severity == "error"), 0)

    @property
    def ending(self) -> str:
        """What its errors say of a run, in a sentence: a mistake of the run's settings is no fault of the machine."""
        codes = {finding.exit_code for _, finding in self.findings if finding.severity == "error"}
        return NOT_AS_CONFIGURED if codes <= OF_SETTINGS else CANNOT_TRAIN

    def refuse(self) -> None:
        """Raise where there is an error: what a run would end with, all errors as its problems."""
        errors = [(check, finding) for check, finding in self.findings if finding.severity == "error"]
        if not errors:
            return
        hint = "loradock env-check checks again; --skip-env-check trains anyway"
        refusal: LoradockError = EnvironmentUnfit(
            self.ending,
            hint=hint if self.ending == CANNOT_TRAIN else errors[0][1].remedy,
            problems=[Problem(what=f"{check.name}: {finding.what}", hint=finding.remedy) for check, finding in errors],
        )
        refusal.exit_code = self.exit_code
        raise refusal

    def then(self, later: Examination) -> Examination:
        """This one with what was looked at later; node and GPUs are as they were found here."""
        return replace(
            self,
            level=later.level,
            looked=(*self.looked, *later.looked),
            seconds=self.seconds + later.seconds,
            left_out=(*self.left_out, *later.left_out),
            provenance=self.provenance and self.provenance.then(later.provenance),
        )

    def summary(self) -> dict[str, Any]:
        """What was found and how long it took, for a run's record."""
        return {
            "level": self.level,
            "seconds": round(self.seconds, 1),
            **({"kept": asdict(self.provenance)} if self.provenance else {}),
            "findings": [
                {
                    "check": check.name,
                    "group": check.group,
                    "severity": finding.severity,
                    "what": finding.what,
                    "remedy": finding.remedy,
                    "exit_code": finding.exit_code,
                }
                for check, finding in self.findings
            ],
        }

    @property
    def measured(self) -> dict[str, dict[str, float]]:
        """Figures by check and name, of all findings of the check together."""
        figures: dict[str, dict[str, float]] = {}
        for check, finding in self.findings:
            if finding.measured:
                figures.setdefault(check.name, {}).update(finding.measured)
        return figures

    def as_dict(self) -> dict[str, Any]:
        """The form for programs; `loradock env-check --schema` prints its JSON Schema."""
        return {
            "format": FORMAT,
            "loradock": __version__,
            "level": self.level,
            "worst": self.worst,
            "exit_code": self.exit_code,
            "findings": self.summary()["findings"],
            "left_out": {check.name: f"needs {NEEDS[check.needs]}" for check in self.left_out},
            "measured": self.measured,
            "seconds": {look.check.name: round(look.seconds, 3) for look in self.looked},
            "node": asdict(self.node),
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "facts": asdict(self.facts),
        }


def chosen(only: Sequence[str], level: Level | None) -> tuple[tuple[Check, ...], Level]:
    """The checks of these groups (or by their own names) up to a level, and that level.

    Without a level it is `compute`, or what the named checks need. UsageError with the nearest name for one unknown.
    """
    names = [*GROUPS, *(check.name for check in CHECKS)]
    problems = [
        Problem(
            what=f"unknown group or check: {name}",
            hint=did_you_mean(name, names) or "loradock env-check --list shows them all",
        )
        for name in only
        if name not in names
    ]
    if problems:
        raise UsageError("--only: unknown groups or checks", hint=f"groups: {', '.join(GROUPS)}", problems=problems)
    checks = [check for check in CHECKS if not only or check.group in only or check.name in only]
    if level is None:
        deepest = max([LEVELS.index(check.level) for check in checks if only], default=0)
        level = LEVELS[max(deepest, LEVELS.index("compute"))]
    return tuple(check for check in checks if LEVELS.index(check.level) <= LEVELS.index(level)), level


def gathered(host: Host) -> Facts:
    """The facts of this machine; EnvironmentUnfit where its driver hangs."""
    return answered(lambda: probe.gather(host), limit_seconds=GPUS_SECONDS, what="the GPU driver (NVML)")


def examine(
    *,
    host: Host,
    facts: Facts,
    plan: Intent,
    only: Sequence[str] = (),
    level: Level | None = None,
    progress: Callable[[Looked], None] | None = None,
    computes: bool | None = None,
    kept: Kept | None = None,
) -> Examination:
    """Look at this machine. Raises UsageError for an unknown name; what is wrong with the machine is in the result.

    With `computes` only the checks that compute (True; then node and GPUs are not described), or the others (False).
    `kept` has verdicts of before, which are taken where they still count, and gets the new ones.
    """
    checks, level = chosen(only, level)
    checks = tuple(check for check in checks if computes in (None, check.computes))
    applying = [check for check in checks if check.applies(facts, plan)]
    left_out = tuple(check for check in checks if check not in applying)
    if not applying:
        needed = " and ".join(sorted({NEEDS[check.needs] for check in left_out})) or "a higher --level"
        raise UsageError(f"there is nothing to check: {', '.join(only)} needs {needed}", hint="loradock env-check")
    began = time.monotonic()
    taken = kept.taken(applying) if kept else []
    if progress:
        for look in taken:
            progress(look)
    known = {look.check for look in taken}
    computed = run(
        [check for check in applying if check not in known], host=host, facts=facts, plan=plan, progress=progress
    )
    if kept:
        kept.keep(computed)
    examination = Examination(
        level=level,
        looked=(*taken, *computed),
        facts=facts,
        seconds=time.monotonic() - began,
        left_out=left_out,
        provenance=kept.provenance if kept and not kept.is_full else None,
    )
    if computes:
        return examination
    gpus = answered(lambda: host.gpu_states(afresh=True), limit_seconds=GPUS_SECONDS, what="the GPU driver (NVML)")
    return replace(examination, node=node(host, facts, plan), gpus=gpus)
