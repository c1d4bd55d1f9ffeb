"""The audit of a plan: what is left on the table, by prediction, and what that would cost. Pure: nothing is run.

Each trial that is a remedy is planned again on the same machine, and its step time predicted (`prediction`, `gain`).
What the prediction is worth is said with each: the speed model compares plans, it does not promise seconds.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from loradock.config.schema import RunConfig
from loradock.facts import DataFacts, Facts, ModelFacts
from loradock.plan import planner
from loradock.plan.audit import already
from loradock.plan.audit.findings import Left, Opportunity, Phase, considered, phased
from loradock.plan.audit.gain import Gain
from loradock.plan.audit.prediction import run_seconds
from loradock.plan.audit.totals import Total, together
from loradock.plan.changed import AtLength
from loradock.plan.context import Context
from loradock.plan.planner import context_of
from loradock.plan.row_cut import estimated

__all__ = ["Audit", "Finish", "Gain", "Left", "Opportunity", "Total", "audit"]

RISKED_GAIN = 1.05


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What the whole run takes: real tokens of all processes, steps, seconds, and the price where one is known."""

    tokens: int
    steps: int
    seconds: float
    cost: float | None

    @property
    def tokens_per_second(self) -> float:
        """Real tokens a second, all in all."""
        return self.tokens / self.seconds


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A plan and what could be better: findings by gain, then risk, then effort; their phases; totals; what is
    good, what was left.

    `available_bytes` is the memory that the plan may use of `plan.memory_bytes`.
    """

    baseline: Context
    available_bytes: int
    finish: Finish
    findings: tuple[Opportunity, ...]
    phases: tuple[Phase, ...]
    conservative: Total
    aggressive: Total
    good: tuple[str, ...]
    left: tuple[Left, ...]

    def finish_with(self, total: Total, *, price_per_hour: float | None) -> Finish:
        """What the run takes with these changes."""
        return finish_of(total.after or self.baseline, price_per_hour=price_per_hour)


def audit(
    config: RunConfig,
    facts: Facts,
    model: ModelFacts,
    data: DataFacts,
    *,
    at_length: AtLength | None = None,
    price_per_hour: float | None = None,
) -> Audit:
    """Plan as asked, and again with each remedy. Raises what `plan.make` raises for the configuration itself.

    `at_length` counts the data set with rows cut at another length; `price_per_hour` is of one GPU.
    """
    cut = at_length or functools.partial(estimated, data, long_rows=config.data.long_rows)
    plan = planner.fitting(config, facts=facts, model=model, data=data, at_length=cut)
    baseline = context_of(plan, config, facts=facts)
    findings, proposals = considered(baseline, at_length=at_length)
    return Audit(
        baseline=baseline,
        available_bytes=baseline.memory_bytes,
        finish=finish_of(baseline, price_per_hour=price_per_hour),
        findings=findings,
        phases=phased(findings),
        conservative=together(baseline, findings, is_wanted=is_safe, at_length=at_length),
        aggressive=together(baseline, findings, is_wanted=is_worth_it, at_length=at_length),
        good=tuple(already.good(baseline)),
        left=(*proposals, *(Left(what=what, why=why) for what, why in already.reasoned(baseline.plan))),
    )


def is_safe(finding: Opportunity) -> bool:
    """Without risk to accuracy or stability, and with a gain that is computed, not claimed."""
    return finding.risk == 0 and not finding.gain.is_range


def is_worth_it(finding: Opportunity) -> bool:
    """Safe, or expected to give enough for what is risked."""
    return finding.risk == 0 or finding.gain.expected >= RISKED_GAIN


def finish_of(baseline: Context, *, price_per_hour: float | None) -> Finish:
    """Tokens, steps, seconds and cost of a whole run, on all its GPUs."""
    plan, gpus = baseline.plan, baseline.facts.world_size
    steps, seconds = plan.steps.value, run_seconds(baseline)
    cost = None if price_per_hour is None else price_per_hour * gpus * seconds / 3600
    of_step, data = baseline.step_samples, plan.data
    epochs, remainder = divmod(steps, data.steps_per_epoch or max(1, math.ceil(data.samples_per_epoch / of_step)))
    samples = epochs * data.samples_per_epoch + remainder * of_step
    return Finish(tokens=round(samples * data.mean_tokens), steps=steps, seconds=seconds, cost=cost)
