"""How far the fast engine may be from PEFT in the start-up check, and what was found: see `self_check`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far loss and gradient are from those held to be right, as shares of these.

    `gradient` is the largest one of all A, all B and all rows of new tokens, `adapter` that of the one matrix that is
    worst.
    """

    loss: float
    gradient: float
    adapter: float

    def __str__(self) -> str:
        return f"loss {self.loss:.1g}, gradient {self.gradient:.1g}, worst adapter {self.adapter:.1g}"

    def is_within(self, limit: Distance) -> bool:
        """False where one of them is larger, or not a number."""
        return all(found <= most for found, most in zip(astuple(self), astuple(limit), strict=True))

    def plus(self, factor: float, other: Distance) -> Distance:
        """This one and so many times the other one."""
        mine, theirs = astuple(self), astuple(other)
        loss, gradient, adapter = (one + factor * two for one, two in zip(mine, theirs, strict=True))
        return Distance(loss=loss, gradient=gradient, adapter=adapter)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far may be off: `leak` and `exact` in float32, `rounded` beside what PEFT is off by itself."""

    leak: float
    exact: Distance
    rounded: Distance


DENSE = Limits(
    leak=1e-5,
    exact=Distance(loss=1e-4, gradient=1e-3, adapter=3e-3),
    rounded=Distance(loss=2e-2, gradient=2e-2, adapter=1e-1),
)
"""In float32 sums in another order are all that may differ."""
ROUTED = replace(DENSE, leak=1e-3)
"""Of a mixture, an expert's tokens share sums: where two experts are nearly equal, other documents decide between them,
and a token moves whole. In what is compared with PEFT the routers choose as PEFT's do."""
MOST_REROUTED, MOST_ROUNDED_REROUTED = 1e-2, 0.25
"""Of the choices of routers, those that PEFT does not make in float32: by the fast engine in float32, and rounded."""
OF_PEFTS_OWN = 1.5
"""In another dtype: `rounded` and so many times what PEFT is off by itself."""


@dataclass(frozen=True, kw_only=True)
class Differences:
    """What was found. `leak`: how far a document's loss moves with the others' tokens, as a share of it.

    `exact`: the fast engine from PEFT, both in float32, where a mixture's routers choose as PEFT's do; `rerouted`: the
    largest share in a layer of experts that they would not have chosen. `rounded` and `pefts`: either of them in the
    run's dtype from PEFT in float32; None where that is the run's dtype.
    """

    leak: float
    exact: Distance
    limits: Limits = DENSE
    rerouted: float = 0.0
    rounded_rerouted: float = 0.0
    rounded: Distance | None = None
    pefts: Distance | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the fast engine computes what PEFT computes."""
        if self.rerouted > MOST_REROUTED or self.rounded_rerouted > MOST_ROUNDED_REROUTED:
            return False
        is_exact = self.leak <= self.limits.leak and self.exact.is_within(self.limits.exact)
        if self.rounded is None or self.pefts is None:
            return is_exact
        return is_exact and self.rounded.is_within(self.limits.rounded.plus(OF_PEFTS_OWN, self.pefts))

    def __str__(self) -> str:
        is_alone = self.leak <= self.limits.leak
        leak = "documents do not see one another" if is_alone else f"other documents move a loss by {self.leak:.0e}"
        rerouted = max(self.rerouted, self.rounded_rerouted)
        routers = f"; rounding changes {rerouted:.1%} of what routers choose" if rerouted else ""
        text = f"{leak}{routers}; relative difference from PEFT in float32: {self.exact}"
        if self.rounded is None:
            return text
        return f"{text}; in the compute dtype from float32: {self.rounded} (PEFT itself: {self.pefts})"
