"""One file a knob, by its name in `plan.Plan`: how it is decided, what `diagnose` tries instead, what that may gain.

A knob is a pure module with `decide(context) -> Decision`, which looks at the knobs above it by `context.plan`. It may
have `propose(context) -> tuple[Trial, ...]`; and where the speed model knows nothing of it `GAIN`, a `Stated` range,
with `gains(before, after) -> bool`, which says for which changes. A module that is not a field of `Plan` only proposes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from loradock.plan.context import Context
from loradock.plan.plan import Decision, Plan
from loradock.plan.trial import Stated, Trial


@dataclass(frozen=True, kw_only=True)
class Knob:
    """What a module of this folder has."""

    decide: Callable[[Context], Decision[Any]] | None
    propose: Callable[[Context], tuple[Trial, ...]]
    gain: Stated | None
    gains: Callable[[Plan, Plan], bool]


def knob(name: str) -> Knob:
    """The knob of that name."""
    module = import_module(f"{__name__}.{name}")
    return Knob(
        decide=getattr(module, "decide", None),
        propose=getattr(module, "propose", lambda _context: ()),
        gain=getattr(module, "GAIN", None),
        gains=getattr(module, "gains", lambda _before, _after: False),
    )
