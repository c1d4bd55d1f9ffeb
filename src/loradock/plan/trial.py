"""A trial: one thing changed against a configuration, and what it would mean if that helps.

A knob's `propose(context)` gives them: none where the change makes no sense for a plan. `loradock diagnose` measures
what each change does, `loradock plan` predicts it; neither knows the knobs by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Risk = Literal["none", "low", "moderate", "high"]
Debugging = Literal["easy", "moderate", "hard"]
ONE_SETTING, SHORT_RUN, BUILD = 1, 15, 120
"""Minutes of work: a setting; a setting and a short run that proves it; an image that is built and tried."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One change.

    `name`: unique, for the command line (`micro-batch-x2`). `title`: the change in words, with the values (`micro-batch
    8 instead of 4`). `settings`: what `--set` takes. `cause`: what is at fault where it helps (`the micro-batch is too
    small`). `phase`: the phase of `step_time.PHASES` that it shortens, so that it can save no more than that takes.
    `price`: what it gives up, empty for nothing. `is_remedy`: it may be proposed; a probe only tells. Risks are to the
    model's accuracy, and to the run's stability; `effort`: what it takes a person, and in `minutes` how long.
    `debugging`: how hard a fault of it is to find. Easy: it shows at the start, and the setting takes it back;
    moderate: it shows late, in a loss or in memory; hard: it is in generated code or in recorded kernels.
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
    minutes: int = ONE_SETTING
    debugging: Debugging = "easy"


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A range for what a knob's better value gains where the speed model knows nothing of it, with its source."""

    low: float
    high: float
    source: str


CLAIMED = "claimed by others, not measured here"
