"""AdamW as a run uses it, several steps, against the same steps in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.remedies import train_with
from loradock.facts import Facts
from loradock.machine import Host

if TYPE_CHECKING:
    import torch

STEPS = 5
NUMBERS = 8192
RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.01
TOLERANCES = {"adamw_fused": 1e-4, "adamw": 1e-4, "adamw_8bit": 0.15, "paged_adamw_8bit": 0.15}
OTHER = {"adamw_fused": "adamw", "adamw": "adamw_fused", "adamw_8bit": "adamw_fused", "paged_adamw_8bit": "adamw_8bit"}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Each implementation at each place."""
    config, made = plan.config, plan.plan
    asked = made.optimizer.value if made else config.train.optimizer if config else "auto"
    return at_each(host, facts, plan, lambda place: _at(place, "adamw_fused" if asked == "auto" else asked))


def _at(place: Device, wanted: str) -> list[Finding]:
    names = [name for name in TOLERANCES if place.is_gpu or not name.endswith("8bit")]
    expected = exact_steps()
    faults = {name: fault(place, name, expected) for name in names}
    return judge(place, faults, wanted)


def judge(place: Device, faults: dict[str, str | None], wanted: str) -> list[Finding]:
    """`faults` maps an implementation to what is wrong with it, None where nothing is."""
    found: list[Finding] = []
    for name, what in faults.items():
        other = OTHER[name] if not faults.get(OTHER[name]) else next((n for n, bad in faults.items() if not bad), None)
        remedy = train_with(f"train.optimizer={other}") if other else "loradock env-check --only packages"
        if what and name == wanted:
            found.append(error(f"{name} on {place.device} {what}", remedy=remedy))
        elif what:
            text = f"{name} on {place.device} {what}; the optimiser of a run here is {wanted}"
            found.append(warning(text, remedy=train_with(f"train.optimizer={wanted}")))
    return found or [ok(f"{', '.join(faults)} on {place.device}: {STEPS} steps match float64")]


def gradients() -> list[torch.Tensor]:
    """One gradient for each step, float64, with noise in its sign so that both moments matter."""
    import torch

    draw = torch.Generator().manual_seed(3)
    slope = torch.randn(NUMBERS, generator=draw, dtype=torch.float64)
    return [slope + 0.5 * torch.randn(NUMBERS, generator=draw, dtype=torch.float64) for _ in range(STEPS)]


def start() -> torch.Tensor:
    """The weights before the first step, float64."""
    import torch

    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def exact_steps() -> torch.Tensor:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2, with the decay scaled by the rate) in float64, weights [N]."""
    import torch

    weights, mean, square = (
        start(),
        torch.zeros(NUMBERS, dtype=torch.float64),
        torch.zeros(NUMBERS, dtype=torch.float64),
    )
    for step, gradient in enumerate(gradients(), 1):
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient * gradient
        unbiased = mean / (1 - BETAS[0] ** step)
        spread = (square / (1 - BETAS[1] ** step)).sqrt() + EPSILON
        weights = weights - RATE * DECAY * weights - RATE * unbiased / spread
    return weights


def fault(place: Device, name: str, expected: torch.Tensor) -> str | None:
    """What is wrong with this implementation here, or None."""
    import torch

    weights = torch.nn.Parameter(start().to(place.device, torch.float32))
    try:
        optimiser = implementation(name, [weights])
        for gradient in gradients():
            weights.grad = gradient.to(place.device, torch.float32)
            optimiser.step()
        place.finish()
    except (RuntimeError, ImportError, AttributeError, NotImplementedError) as failure:
        if is_full(failure):
            raise
        return f"failed: {first_line(failure)}"
    found = weights.detach().cpu().double()
    moved = expected - start()
    off = float((found - expected).norm() / moved.norm())
    return None if math.isfinite(off) and off <= TOLERANCES[name] else "does not match AdamW in float64"


def implementation(name: str, parameters: Sequence[Any]) -> Any:
    """The optimiser by the name that a configuration gives it."""
    import torch

    settings: dict[str, Any] = {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
    if not name.endswith("8bit"):
        return torch.optim.AdamW(parameters, fused=name == "adamw_fused" or None, **settings)
    from bitsandbytes import optim

    return {"adamw_8bit": optim.AdamW8bit, "paged_adamw_8bit": optim.PagedAdamW8bit}[name](parameters, **settings)


CHECK = Check(
    name="optimizer",
    group="compute",
    proves="AdamW (plain, fused, and 8-bit on a GPU) matches AdamW in float64.",
    look=look,
    level="compute",
    limit_seconds=60,
)
