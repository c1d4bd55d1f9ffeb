"""Changes taken together: the plan with all of them at once against the plan as asked, never gains multiplied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loradock.plan.audit.findings import Opportunity, considered
from loradock.plan.audit.gain import Gain, gain
from loradock.plan.changed import AtLength, changed
from loradock.plan.context import Context
from loradock.plan.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Total:
    """What several changes give together; `after` is the baseline with all of them, None where there is none."""

    trials: tuple[Trial, ...]
    gain: Gain
    after: Context | None

    @property
    def settings(self) -> tuple[str, ...]:
        """What `--set` takes."""
        return tuple(setting for trial in self.trials for setting in trial.settings)


def together(
    baseline: Context,
    findings: Sequence[Opportunity],
    *,
    is_wanted: Callable[[Opportunity], bool],
    at_length: AtLength | None,
) -> Total:
    """Take the best wanted finding, look again at what is left on the table then, until nothing is.

    `findings` are those of the baseline, in order. What was set once is not set again; whatever is taken fits.
    """
    picks: list[Trial] = []
    current = baseline
    while (trial := _best(findings, picks, is_wanted=is_wanted)) is not None:
        picks.append(trial)
        current = changed(current, trial.settings, at_length=at_length)
        findings, _ = considered(current, at_length=at_length)
    nothing = Gain(low=1.0, high=1.0, source="nothing is left")
    return Total(
        trials=tuple(picks), gain=gain(baseline, current) if picks else nothing, after=current if picks else None
    )


def _best(
    findings: Sequence[Opportunity], picks: Sequence[Trial], *, is_wanted: Callable[[Opportunity], bool]
) -> Trial | None:
    """The first that is wanted and whose keys are free."""
    keys = {key_of(setting) for trial in picks for setting in trial.settings}
    for finding in findings:
        if is_wanted(finding) and not keys & {key_of(setting) for setting in finding.trial.settings}:
            return finding.trial
    return None


def key_of(setting: str) -> str:
    """The key of KEY=VALUE."""
    return setting.partition("=")[0]
