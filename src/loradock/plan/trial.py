"""A trial: one thing changed against a configuration, and what it would mean if that helps.

A knob's `propose(context)` gives them: none where the change makes no sense for a plan. `loradock diagnose` measures
what each change does, `loradock plan` predicts it; neither knows the knobs by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Risk = Literal["none", "low", "moderate", "high"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One change.

    `name`: unique, for the command line (`micro-batch-x2`). `title`: the change in words, with the values (`micro-batch
    8 instead of 4`). `settings`: what `--set` takes. `cause`: what is at fault where it helps (`the micro-batch is too
    small`). `phase`: the phase of `step_time.PHASES` that it shortens, so that it can save no more than that takes.
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


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A range for what a knob's better value gains where the speed model knows nothing of it, with its source."""

    low: float
    high: float
    source: str


CLAIMED = "claimed by others, not measured here"
