"""The types of a trial: one thing changed against a configuration, and what it would mean if that helps.

A member is one pure module with `propose(baseline) -> tuple[Trial, ...]`: none where the change makes no sense there.
`loradock diagnose` measures what each change does, `loradock plan` predicts it; neither knows the members by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loradock.config.schema import RunConfig
from loradock.facts import Facts
from loradock.plan.plan import Plan

Risk = Literal["none", "low", "moderate", "high"]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What is changed: a configuration, and its plan on a machine."""

    config: RunConfig
    plan: Plan
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One change.

    `name`: unique, for the command line (`micro-batch-x2`). `title`: the change in words, with the values (`micro-batch
    8 instead of 4`). `settings`: what `--set` takes. `cause`: what is at fault where it helps (`the micro-batch is too
    small`). `phase`: the phase of `breakdown.PHASES` that it shortens, so that it can save no more than that takes.
    `price`: what it gives up, empty for nothing. `is_remedy`: it may be proposed; a probe only tells. Risks are to the
    model's accuracy, and to the run's stability; `effort`: what it takes a person.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    cause: str
    phase: str
    price: str = ""
    is_remedy: bool = True
    accuracy_risk: Risk = "none"
    stability_risk: Risk = "none"
    effort: str = "one setting"


Propose = Callable[[Baseline], tuple[Trial, ...]]
