"""What to measure next: every trial against the baseline in rounds, then the winners together. Read `Search.go`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loradock.analysis.diagnose.arms import Arm, key, rotated
from loradock.analysis.diagnose.measure import Failed, Measured, Outcome
from loradock.analysis.diagnose.results import Results
from loradock.analysis.diagnose.verdict import Case, is_minor, is_winner
from loradock.env_check import paired_ratio
from loradock.env_check.paired_ratio import LEAST_ROUNDS, Ratio
from loradock.plan.trial import Trial
from loradock.text.amounts import duration_text

MOST_ROUNDS = 8
NEGLIGIBLE_SHARE = 0.05
"""A trial whose phase takes less of a step is not tried: it could save no more than that."""
PASSES, OVERSHADOWED = "passes", 0.5
"""Passes that take less than this much of what another phase takes are not worth a trial before that is fixed."""
MUCH_SLOWER, SLOWER = math.log(0.8), math.log(0.95)
"""A trial that is much slower once, or slower in each of several rounds, is measured no more: it is no remedy."""
SURE = 3.0
"""Standard deviations of the machine's noise by which it has to be slower."""
OVERTAKEN = 1.5
"""A trial that is this many times slower than another, their intervals apart, is left undecided."""
PATIENCE_SECONDS, PATIENCE = 60.0, 3.0
"""How long a run may take: so much longer than the longest before it, this many times."""
WAITED_FOR = 0.05
"""Share of a step from which an evaluation or a checkpoint is measured in every run, not only in the baseline's."""

Tell = Callable[[str], None]
Measure = Callable[[tuple[str, ...], tuple[str, ...], dict[str, float], float], Outcome]
"""(settings, events to wait for, seconds of the others, limit in seconds) -> outcome of a run."""


class BudgetSpent(Exception):
    """There is no time left for another run."""


@dataclass
class Search:
    """One diagnosis. Its state can be looked at while it goes, and after it was ended by a signal.

    For a table (`is_table`) every trial is measured and none combined.
    """

    trials: Sequence[Trial]
    measure: Measure
    results: Results
    tell: Tell
    budget_seconds: float
    least_rounds: int = LEAST_ROUNDS
    is_table: bool = False
    began: float = field(default_factory=time.monotonic)
    longest_seconds: float = 0.0
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.baseline = Arm(name="baseline", settings=())
        self.arms = [Arm(name=trial.name, settings=trial.settings, trials=(trial,)) for trial in self.trials]
        self.best: Arm | None = None
        self.round = 0

    def go(self) -> None:
        """Measure until every trial is decided and the winners are combined, or the budget is spent."""
        try:
            if not self.run(self.baseline):
                return
            if not self.is_table:
                self.prune()
            self.tell_how_long()
            while self.undecided():
                if self.round:
                    self.run(self.baseline)
                for arm in rotated(self.undecided(), self.round):
                    self.run(arm)
                self.round += 1
            if not self.is_table:
                self.combine()
            self.has_ended = True
        except BudgetSpent:
            self.tell("the budget is spent")

    @property
    def spent_seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self.began

    def prune(self) -> None:
        """Leave out what could not save enough, by the phases of the baseline.

        Where another phase takes most of a step, what slows the passes is looked for once that is fixed.
        """
        breakdown = self.baseline.rounds[0].breakdown
        worst = max((phase for phase in breakdown.phases if phase != PASSES), key=breakdown.share)
        for arm in self.arms:
            share = breakdown.share(arm.trial.phase)
            is_overshadowed = arm.trial.phase == PASSES and share < breakdown.share(worst) * OVERSHADOWED
            if share < NEGLIGIBLE_SHARE or is_overshadowed:
                arm.bound = share

    def tell_how_long(self) -> None:
        """What the rounds that every trial needs will take, as far as the first run tells."""
        count = sum(arm.bound is None for arm in self.arms)
        seconds = (1 + count) * self.least_rounds * self.longest_seconds
        if count and seconds:
            self.tell(
                f"{count} trial(s) to run: {self.least_rounds} rounds of all take about {duration_text(seconds)}, "
                f"the budget is {duration_text(self.budget_seconds)}"
            )

    def undecided(self) -> list[Arm]:
        """What is worth another round."""
        return [arm for arm in self.arms if arm.bound is None and self.is_open(arm) and not self.is_overtaken(arm)]

    def is_overtaken(self, arm: Arm) -> bool:
        """Whether another trial is so much faster that by how much this one is has no weight any more."""
        ratio = self.ratio(arm)
        if self.is_table or not ratio or ratio.rounds < self.least_rounds or ratio.high is None:
            return False
        ratios = [self.ratio(rival) for rival in self.arms if rival is not arm]
        return ratio.side == "open" and any(
            rival_ratio.side == "faster"
            and rival_ratio.low
            and ratio.high < rival_ratio.low
            and ratio.value * OVERTAKEN < rival_ratio.value
            for rival_ratio in ratios
            if rival_ratio
        )

    def is_open(self, arm: Arm, rival: Arm | None = None) -> bool:
        """Whether another round could tell more about an arm against the baseline, or another one."""
        ratio = self.ratio(arm, rival)
        if arm.failure or (ratio and ratio.rounds >= max(MOST_ROUNDS, self.least_rounds)):
            return False
        if ratio is None:
            return True
        if self.is_slower(arm, rival):
            return False
        return ratio.rounds < self.least_rounds or (ratio.side == "open" and not is_minor(ratio))

    def is_slower(self, arm: Arm, rival: Arm | None = None) -> bool:
        """Whether it is slower in each round, and beyond the noise: known sooner than an interval is."""
        ratios = arm.against(rival or self.baseline)
        if not ratios or self.noise is None:
            return False
        limit = MUCH_SLOWER if len(ratios) == 1 else SLOWER
        beyond = -SURE * self.noise / math.sqrt(len(ratios))
        return max(ratios) < limit and sum(ratios) / len(ratios) < beyond

    @property
    def spread(self) -> float | None:
        """The standard deviation of the logarithm of the baseline's speed from round to round; None below two."""
        rounds = self.baseline.rounds
        if len(rounds) < 2:
            return None
        return paired_ratio.deviation(
            [rounds[round_number].faster_than(rounds[min(rounds)]) for round_number in sorted(rounds)]
        )

    @property
    def noise(self) -> float | None:
        """The same of a trial against the baseline within a round, once enough are known; until then the spread.

        Few rounds may agree by chance, so the spread is taken to be larger as Student's t is.
        """
        several = [arm.against(self.baseline) for arm in self.arms]
        if paired_ratio.is_known(several):
            return paired_ratio.typical(several)
        return None if self.spread is None else self.spread * paired_ratio.caution(len(self.baseline.rounds))

    def combine(self) -> None:
        """The winners together, best first, each kept where it makes what there is faster still."""
        baseline = self.baseline.measured
        assert baseline
        winners = [(self.case(arm), arm) for arm in self.arms]
        winners = [(case, arm) for case, arm in winners if is_winner(case, baseline)]
        winners.sort(key=lambda candidate: -candidate[0].ratio.value if candidate[0].ratio else 0.0)
        for _, arm in winners:
            if self.best is None:
                self.best = arm
            elif not {key(setting) for setting in arm.settings} & {key(setting) for setting in self.best.settings}:
                self.add_to_best(arm)

    def add_to_best(self, arm: Arm) -> None:
        """Try the best so far with one more change, round by round beside it."""
        assert self.best
        best = self.best
        combined = Arm(
            name=f"{best.name} + {arm.name}",
            settings=(*best.settings, *arm.settings),
            trials=(*best.trials, *arm.trials),
        )
        self.arms.append(combined)
        while self.is_open(combined, best) and self.is_open_by_sign(combined, best):
            for candidate in (self.baseline, *rotated([best, combined], self.round)):
                self.run(candidate)
            self.round += 1
        ratio = self.ratio(combined, best)
        if ratio and ratio.rounds >= LEAST_ROUNDS and ratio.low and ratio.low > 1:
            self.best = combined

    def is_open_by_sign(self, arm: Arm, rival: Arm) -> bool:
        """Whether it is not known yet that it is faster at all."""
        ratio = self.ratio(arm, rival)
        return not ratio or ratio.rounds < self.least_rounds or not ratio.low or ratio.low <= 1

    def ratio(self, arm: Arm, rival: Arm | None = None) -> Ratio | None:
        """How much faster an arm is than another, the baseline if none is named; None before they shared a round."""
        comparison = arm.against(rival or self.baseline)
        noise = paired_ratio.typical([candidate.against(self.baseline) for candidate in self.arms])
        return paired_ratio.ratio(comparison, least_deviation=noise) if comparison else None

    def case(self, arm: Arm) -> Case:
        """What is known of an arm, for the verdict."""
        return Case(
            trial=arm.trial,
            ratio=self.ratio(arm),
            measured=arm.measured,
            failure=arm.failure,
            bound=arm.bound,
            is_given_up=self.is_slower(arm),
            together=len(arm.trials) > 1,
        )

    def run(self, arm: Arm) -> bool:
        """Measure an arm in this round, or take what is known of it; False where it failed."""
        if arm.failure or self.round in arm.rounds:
            return not arm.failure
        outcome = self.results.get(self.round, arm.settings)
        if outcome is None:
            outcome = self.fresh(arm)
        if isinstance(outcome, Failed):
            arm.failure = outcome
            self.tell(f"{arm.name}: {outcome.kind}: {outcome.words}")
            return False
        arm.rounds[self.round] = outcome
        ratio = self.ratio(arm) if arm is not self.baseline else None
        speed = f"{outcome.breakdown.tokens_per_second:,.0f} tokens/s"
        self.tell(f"round {self.round + 1}, {arm.name}: {speed}" + (f", {ratio}" if ratio else ""))
        return True

    def fresh(self, arm: Arm) -> Outcome:
        """A run. BudgetSpent where there is no time for it: it would end after the budget, as long as others took."""
        remaining = self.budget_seconds - self.spent_seconds
        if self.baseline.rounds and remaining < self.longest_seconds:
            raise BudgetSpent
        waits_for, known = self.events(arm)
        is_first = not self.baseline.rounds
        limit = remaining if is_first else min(remaining, PATIENCE_SECONDS + PATIENCE * self.longest_seconds)
        began = time.monotonic()
        outcome = self.measure(arm.settings, waits_for, known, max(limit, 1.0))
        if isinstance(outcome, Failed) and outcome.kind == "too slow" and limit >= remaining:
            raise BudgetSpent
        if isinstance(outcome, Measured):
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        self.results.put(self.round, arm.settings, outcome)
        return outcome

    def events(self, arm: Arm) -> tuple[tuple[str, ...], dict[str, float]]:
        """The events between steps that a run has to wait for, and what the others take, as the baseline found."""
        if not self.baseline.rounds:
            return ("evaluation", "saving"), {}
        measured = self.baseline.rounds[0]
        phases = {trial.phase for trial in arm.trials}
        waits_for = tuple(
            name for name in measured.event_seconds if name in phases or measured.breakdown.share(name) >= WAITED_FOR
        )
        return waits_for, {name: value for name, value in measured.event_seconds.items() if name not in waits_for}
