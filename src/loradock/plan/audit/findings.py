"""Each remedy as a finding with what it is worth, or left with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loradock.errors import OutOfMemory
from loradock.plan.audit.gain import Gain, gain
from loradock.plan.audit.objections import objection
from loradock.plan.audit.prediction import run_seconds
from loradock.plan.changed import AtLength
from loradock.plan.context import Context
from loradock.plan.trial import BUILD, ONE_SETTING, SHORT_RUN, Debugging, Risk, Trial
from loradock.plan.trials import outcomes

Severity = Literal["critical", "moderate", "low"]
CRITICAL, MODERATE = 1.5, 1.1
CRITICAL_SECONDS, MODERATE_SECONDS = 300.0, 30.0
"""A run that saves less is not worth a person's minute, whatever the factor."""
LEAST_GAIN = 1.01
AT_ONCE, TRIED, BUILT = "at once", "after a short run that proves it", "after a build"
OF_STEPS = ("data", "passes", "optimizer")
"""Phases of a step itself; evaluating, saving and logging have a cadence."""
RISKS: tuple[Risk, ...] = ("none", "low", "moderate", "high")
EFFORTS = ("one setting",)
"""The least effort; every other one is more."""


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """A change that is expected to pay. `memory_bytes`: what the plan needs with it. `run_seconds`: without it."""

    trial: Trial
    gain: Gain
    memory_bytes: int
    run_seconds: float

    @property
    def severity(self) -> Severity:
        """How much is left on the table without it, by the figure that is shown and by the time that it saves."""
        if self.shown_gain >= CRITICAL and self.saved_seconds >= CRITICAL_SECONDS:
            return "critical"
        return "moderate" if self.shown_gain >= MODERATE and self.saved_seconds >= MODERATE_SECONDS else "low"

    @property
    def saved_seconds(self) -> float:
        """Of the whole run, as it is predicted."""
        return self.run_seconds * (1 - 1 / self.gain.expected)

    @property
    def minutes(self) -> int:
        """Of a person's work: what has a risk is proven by a short run, too."""
        return max(self.trial.minutes, SHORT_RUN) if self.risk else self.trial.minutes

    @property
    def debugging(self) -> Debugging:
        """How hard a fault of it is to find: what touches accuracy shows in no error, only in an evaluation."""
        is_silent = self.trial.accuracy_risk != "none" and self.trial.debugging == "easy"
        return "moderate" if is_silent else self.trial.debugging

    @property
    def shown_gain(self) -> float:
        """The gain as a person reads it."""
        return round(self.gain.expected, 2)

    @property
    def risk(self) -> int:
        """Accuracy's and stability's together, for the order."""
        return RISKS.index(self.trial.accuracy_risk) + RISKS.index(self.trial.stability_risk)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Changes that are made together, the best first. `when`: what has to be done before they can be relied on."""

    when: str
    findings: tuple[Opportunity, ...]

    @property
    def minutes(self) -> int:
        """Of a person's work, all together."""
        return sum(finding.minutes for finding in self.findings)


def phased(findings: Sequence[Opportunity]) -> tuple[Phase, ...]:
    """What is one setting and safe first, then what a short run has to prove, then what has to be built."""
    phases: dict[str, list[Opportunity]] = {AT_ONCE: [], TRIED: [], BUILT: []}
    for finding in findings:
        is_safe = finding.risk == 0 and finding.minutes == ONE_SETTING
        phases[AT_ONCE if is_safe else TRIED if finding.minutes < BUILD else BUILT].append(finding)
    return tuple(Phase(when=when, findings=tuple(entry)) for when, entry in phases.items() if entry)


@dataclass(frozen=True, kw_only=True)
class Left:
    """Something that was considered and left, with the reason."""

    what: str
    why: str


def considered(baseline: Context, *, at_length: AtLength | None) -> tuple[tuple[Opportunity, ...], list[Left]]:
    """Every remedy as a finding, or left with the reason."""
    findings: list[Opportunity] = []
    proposals: list[Left] = []
    seconds = run_seconds(baseline)
    for trial, trial_context in outcomes(baseline, at_length=at_length):
        if not trial.is_remedy:
            continue
        if isinstance(trial_context, OutOfMemory):
            proposals.append(Left(what=trial.title, why=trial_context.what))
            continue
        worth = gain(
            baseline, trial_context, touches_accuracy=trial.accuracy_risk != "none" and trial.phase in OF_STEPS
        )
        need = trial_context.plan.memory_bytes["total"]
        if not fits(trial_context):
            have = trial_context.memory_bytes
            proposals.append(
                Left(what=trial.title, why=f"needs {need / 2**30:.1f} GiB of {have / 2**30:.1f}: out of memory")
            )
        elif (why := objection(baseline, trial_context)) is not None:
            proposals.append(Left(what=trial.title, why=why))
        elif worth.expected < LEAST_GAIN:
            proposals.append(
                Left(what=trial.title, why=f"{worth.expected:.2f}x the real tokens/s expected ({worth.source})")
            )
        else:
            findings.append(Opportunity(trial=trial, gain=worth, memory_bytes=need, run_seconds=seconds))
    findings.sort(key=lambda finding: (-finding.shown_gain, finding.risk, finding.trial.effort not in EFFORTS))
    return tuple(findings), proposals


def fits(baseline: Context) -> bool:
    """Whether the memory expected is there."""
    return baseline.plan.memory_bytes["total"] <= baseline.memory_bytes
