"""Each remedy as a finding with what it is worth, or left with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loradock.errors import OutOfMemory
from loradock.plan.audit.gain import Gain, gain
from loradock.plan.audit.objections import objection
from loradock.plan.changed import AtLength
from loradock.plan.context import Context
from loradock.plan.trial import Risk, Trial
from loradock.plan.trials import outcomes

Severity = Literal["critical", "moderate", "low"]
CRITICAL, MODERATE = 1.5, 1.1
LEAST_GAIN = 1.01
RISKS: tuple[Risk, ...] = ("none", "low", "moderate", "high")
EFFORTS = ("one setting",)
"""The least effort; every other one is more."""


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """A change that is expected to pay. `memory_bytes`: what the plan needs with it."""

    trial: Trial
    gain: Gain
    memory_bytes: int

    @property
    def severity(self) -> Severity:
        """How much is left on the table without it, by the figure that is shown; of a range by its middle."""
        if self.shown_gain >= CRITICAL:
            return "critical"
        return "moderate" if self.shown_gain >= MODERATE else "low"

    @property
    def shown_gain(self) -> float:
        """The gain as a person reads it."""
        return round(self.gain.expected, 2)

    @property
    def risk(self) -> int:
        """Accuracy's and stability's together, for the order."""
        return RISKS.index(self.trial.accuracy_risk) + RISKS.index(self.trial.stability_risk)


@dataclass(frozen=True, kw_only=True)
class Left:
    """Something that was considered and left, with the reason."""

    what: str
    why: str


def considered(baseline: Context, *, at_length: AtLength | None) -> tuple[tuple[Opportunity, ...], list[Left]]:
    """Every remedy as a finding, or left with the reason."""
    findings: list[Opportunity] = []
    left: list[Left] = []
    for trial, after in outcomes(baseline, at_length=at_length):
        if not trial.is_remedy:
            continue
        if isinstance(after, OutOfMemory):
            left.append(Left(what=trial.title, why=after.what))
            continue
        worth = gain(baseline, after)
        need = after.plan.memory_bytes["total"]
        if not fits(after):
            have = after.memory_bytes
            left.append(
                Left(what=trial.title, why=f"needs {need / 2**30:.1f} GiB of {have / 2**30:.1f}: out of memory")
            )
        elif (why := objection(baseline, after)) is not None:
            left.append(Left(what=trial.title, why=why))
        elif worth.expected < LEAST_GAIN:
            left.append(
                Left(what=trial.title, why=f"{worth.expected:.2f}x the real tokens/s expected ({worth.source})")
            )
        else:
            findings.append(Opportunity(trial=trial, gain=worth, memory_bytes=need))
    findings.sort(key=lambda each: (-each.shown_gain, each.risk, each.trial.effort not in EFFORTS))
    return tuple(findings), left


def fits(baseline: Context) -> bool:
    """Whether the memory expected is there."""
    return baseline.plan.memory_bytes["total"] <= baseline.memory_bytes
