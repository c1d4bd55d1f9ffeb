"""What the measurements mean: a conclusion for each trial, and the bottleneck in one sentence. Pure.

A phase between the passes (data, optimiser, logging, evaluation, saving) and padding are evidence by themselves: what
share of a step they take. What makes the passes slow only a trial can tell, and only one that gives nothing up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loradock.analysis.diagnose.measure import Failed, Measured
from loradock.env_check.paired_ratio import FASTER, LEAST_ROUNDS, Ratio
from loradock.plan.trial import Trial
from loradock.text.amounts import percent

CAUSE = 1.15
"""How many times faster a trial has to make a run to be called a cause; below, it helps a little."""
LOUD_SHARE = 0.15
"""Of a step: from there a phase is a bottleneck."""
MUCH_MEMORY = 1.25
EXPLAINED = 0.5
"""Of the logarithm of a speed-up's lower end: where less padding explains as much, it is padding and nothing else."""
BEARABLE = ("none", "low")
PHASES = {
    "data": "waiting for data",
    "optimizer": "the optimiser's update",
    "logging": "writing metrics",
    "evaluation": "evaluating",
    "saving": "saving checkpoints",
}

Word = Literal[
    "cause", "helps a little", "not the cause", "not worth it", "out of memory", "failed", "undecided", "not tried"
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known of one trial, or of several together (`together`): `bound` is the share that it could save.

    `is_given_up`: it was slower beyond the noise, and measured no more.
    """

    trial: Trial
    ratio: Ratio | None = None
    measured: Measured | None = None
    failure: Failed | None = None
    bound: float | None = None
    is_given_up: bool = False
    together: bool = False


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """One of a few words, and the reason."""

    word: Word
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """What slows: a phase, `padding` or the name of a trial; the share of a step that it costs; the evidence in words.

    `trial` is the name of the trial that confirms it, where one does.
    """

    name: str
    saving: float
    sentence: str
    trial: str | None = None


def conclude(case: Case, baseline: Measured) -> Conclusion:
    """What came out for one trial."""
    trial, ratio = case.trial, case.ratio
    if case.failure:
        word: Word = "out of memory" if case.failure.kind == "out of memory" else "failed"
        return Conclusion(word=word, why=case.failure.words)
    if case.bound is not None:
        return Conclusion(word="not tried", why=f"can save at most {percent(case.bound)} ({trial.phase})")
    if ratio is None:
        return Conclusion(word="not tried", why="the budget was spent")
    if case.is_given_up or ratio.side == "not":
        return Conclusion(word="not the cause", why="" if ratio.value > 1 / FASTER else "slower")
    if is_minor(ratio):
        return Conclusion(word="not the cause", why=f"{ratio.high:.2f}x faster at most")
    if ratio.side == "open":
        return Conclusion(word="undecided", why=f"after {ratio.rounds} round(s)")
    if case.measured and (why := too_dear(case, case.measured, baseline)):
        return Conclusion(word="not worth it", why=why)
    return Conclusion(word="cause" if ratio.value >= CAUSE else "helps a little", why=trial.price)


def is_minor(ratio: Ratio) -> bool:
    """Whether it is open if it is faster, but sure that it is no cause, after more rounds than an interval needs."""
    return ratio.side == "open" and ratio.rounds > LEAST_ROUNDS and ratio.high is not None and ratio.high < CAUSE


def too_dear(case: Case, measured: Measured, baseline: Measured) -> str:
    """Why a trial that is faster should not be taken; empty where it may be."""
    trial = case.trial
    lost = measured.lost_tokens - baseline.lost_tokens
    if lost > 0:
        share = percent(lost / max(1, baseline.all_tokens))
        return f"{share} more of the tokens are lost, {measured.cut_rows:,} rows are cut or dropped"
    risks = {"accuracy": trial.accuracy_risk, "stability": trial.stability_risk}
    for subject, risk in risks.items():
        if risk not in BEARABLE and trial.is_remedy:
            return f"{risk} risk to {subject}" + (f": {trial.price}" if trial.price else "")
    grown = measured.memory_bytes / max(1, baseline.memory_bytes)
    if trial.price and grown > MUCH_MEMORY:
        return f"{grown:.1f} times the memory"
    if trial.price and case.ratio and case.ratio.value < CAUSE:
        return trial.price
    return ""


def is_winner(case: Case, baseline: Measured) -> bool:
    """Whether a trial may be proposed: faster beyond the noise, a remedy, and not too dear."""
    return case.trial.is_remedy and conclude(case, baseline).word in ("cause", "helps a little")


def bottlenecks(cases: Sequence[Case], baseline: Measured) -> tuple[Bottleneck, ...]:
    """What slows, the worst first; empty where nothing does."""
    single = [case for case in cases if not case.together]
    causes = [*by_phase(single, baseline), *by_padding(single, baseline), *by_trial(single, baseline)]
    return tuple(sorted(causes, key=lambda cause: -cause.saving))


def by_phase(cases: Sequence[Case], baseline: Measured) -> Iterator[Bottleneck]:
    """Phases that take a loud share of a step, unless a probe that takes them out makes nothing faster."""
    for phase, label in PHASES.items():
        share = baseline.breakdown.share(phase)
        tried = [case for case in cases if case.trial.phase == phase and case.ratio]
        is_refuted = any(not case.trial.is_remedy and case.ratio and case.ratio.side == "not" for case in tried)
        if share < LOUD_SHARE or is_refuted:
            continue
        evidence, trial = evidence_of(tried)
        sentence = f"{label} takes {percent(share)} of each step{evidence}"
        yield Bottleneck(name=phase, saving=share, sentence=sentence, trial=trial)


def by_padding(cases: Sequence[Case], baseline: Measured) -> Iterator[Bottleneck]:
    """Padding that takes a loud share of a step, unless passes with less of it are no faster."""
    cost = padding_cost(baseline)
    if cost < LOUD_SHARE:
        return
    without = [case for case in cases if case.ratio and pads_less(case, baseline)]
    if without and all(case.ratio and case.ratio.side == "not" for case in without):
        return
    evidence, trial = evidence_of(without)
    sentence = (
        f"padding takes about {percent(cost)} of each step: "
        f"{percent(baseline.padding_share)} of the tokens that go through the model are padding{evidence}"
    )
    yield Bottleneck(name="padding", saving=cost, sentence=sentence, trial=trial)


def by_trial(cases: Sequence[Case], baseline: Measured) -> Iterator[Bottleneck]:
    """Causes in the passes that a trial found which gives nothing up, and which padding does not explain.

    They cost no more than the passes take, though another engine also takes out what another phase of this one takes.
    """
    cost, passes = padding_cost(baseline), baseline.breakdown.share("passes")
    for case in sorted(cases, key=lambda case: -case.ratio.value if case.ratio else 0.0):
        ratio, trial = case.ratio, case.trial
        if trial.phase != "passes" or trial.price or ratio is None or conclude(case, baseline).word != "cause":
            continue
        surely = math.log(ratio.low or ratio.value)
        if cost >= LOUD_SHARE and pads_less(case, baseline) and -math.log1p(-cost) > EXPLAINED * surely:
            continue
        share = percent(passes)
        sentence = f"{trial.cause} (passes take {share} of each step); with {trial.title} it runs {ratio} faster"
        saving = min(1 - 1 / ratio.value, passes)
        yield Bottleneck(name=trial.name, saving=saving, sentence=sentence, trial=trial.name)


def evidence_of(cases: Sequence[Case]) -> tuple[str, str | None]:
    """What the best of these trials adds to a sentence, and its name; nothing where none is faster."""
    faster = [
        (case.ratio.value, case.ratio, case.trial) for case in cases if case.ratio and case.ratio.side == "faster"
    ]
    if not faster:
        return "", None
    _, ratio, trial = max(faster, key=lambda entry: entry[0])
    return f"; with {trial.title} it runs {ratio} faster", trial.name


def padding_cost(measured: Measured) -> float:
    """The share of a step that goes into padding, if a padded token takes the time of a real one."""
    return measured.padding_share * measured.breakdown.share("passes")


def pads_less(case: Case, baseline: Measured) -> bool:
    """Whether a change to the passes leaves less than half of the padding."""
    return (
        case.trial.phase == "passes"
        and case.measured is not None
        and case.measured.padding_share < baseline.padding_share / 2
    )


def summary(causes: Sequence[Bottleneck], cases: Sequence[Case], baseline: Measured) -> str:
    """The named bottleneck, or that there is none, in one sentence with its figures."""
    if causes:
        return causes[0].sentence
    tail = undecided(cases, baseline)
    share = percent(baseline.breakdown.share("passes"))
    return (
        f"no bottleneck found: passes take {share} of each step, and no trial without a price makes "
        f"them {CAUSE - 1:.0%} faster{tail}"
    )


def undecided(cases: Sequence[Case], baseline: Measured) -> str:
    """How many trials are undecided, and which of them promises most; empty where none is."""
    ratios = {
        case.trial.title: case.ratio
        for case in cases
        if case.ratio and not case.together and conclude(case, baseline).word == "undecided"
    }
    if not ratios:
        return ""
    best = max(ratios, key=lambda title: ratios[title].value)
    promising = f", the most promising: {best}, {ratios[best]}" if ratios[best].value > FASTER else ""
    return f"; {len(ratios)} trial(s) are undecided{promising}"
