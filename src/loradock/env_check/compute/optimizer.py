"""Each optimiser as a run uses it, several steps, against the same steps in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loradock.catalog import optimizers
from loradock.catalog.optimizers import OPTIMIZERS
from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.remedies import train_with
from loradock.facts import Facts
from loradock.machine import Host

if TYPE_CHECKING:
    import torch

STEPS = 5
NUMBERS = 8192
RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.999), 1e-8, 0.01
TORCH = "torch.optim"
LION_BETAS = (0.9, 0.99)
ADAFACTOR_POWER = -0.8


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Each implementation at each place."""
    config, loaded = plan.config, plan.plan
    setting = loaded.optimizer.value if loaded else config.train.optimizer if config else "auto"
    return at_each(host, facts, plan, lambda place: _at(place, optimizers.named(setting).name))


def _at(place: Device, setting: str) -> list[Finding]:
    device = "cuda" if place.is_gpu else "cpu"
    here = [known for known in OPTIMIZERS.values() if device in known.devices]
    # On a CPU bitsandbytes takes seconds to import, and only a run that asks for one of its optimisers pays them.
    names = [known.name for known in here if place.is_gpu or known.module == TORCH or known.name == setting]
    expected = {kind: steps() for kind, steps in EXACT.items()}
    faults = {name: fault(place, name, expected.get(OPTIMIZERS[name].kind)) for name in names}
    return judge(place, faults, setting)


def judge(place: Device, faults: dict[str, str | None], wanted: str) -> list[Finding]:
    """`faults` maps an implementation to what is wrong with it, None where nothing is."""
    findings: list[Finding] = []
    for name, what in faults.items():
        alternative: str | None = OPTIMIZERS[name].instead
        if faults.get(alternative):
            alternative = next((n for n, bad in faults.items() if not bad), None)
        remedy = train_with(f"train.optimizer={alternative}") if alternative else "loradock env-check --only packages"
        if what and name == wanted:
            findings.append(error(f"{name} on {place.device} {what}", remedy=remedy))
        elif what:
            text = f"{name} on {place.device} {what}; the optimiser of a run here is {wanted}"
            findings.append(warning(text, remedy=train_with(f"train.optimizer={wanted}")))
    return findings or [ok(f"{', '.join(faults)} on {place.device}: {STEPS} steps match float64")]


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


def exact_lion_steps() -> torch.Tensor:
    """Lion (Chen et al. 2023, algorithm 2, with the decay scaled by the rate) in float64, weights [N]."""
    import torch

    weights, mean = start(), torch.zeros(NUMBERS, dtype=torch.float64)
    for gradient in gradients():
        update = (LION_BETAS[0] * mean + (1 - LION_BETAS[0]) * gradient).sign()
        weights = weights - RATE * DECAY * weights - RATE * update
        mean = LION_BETAS[1] * mean + (1 - LION_BETAS[1]) * gradient
    return weights


def exact_adafactor_steps() -> torch.Tensor:
    """Adafactor (Shazeer and Stern 2018, algorithm 5, with the decay scaled by the rate) in float64, weights [N]."""
    import torch

    weights, square = start(), torch.zeros(NUMBERS, dtype=torch.float64)
    for step, gradient in enumerate(gradients(), 1):
        share = step**ADAFACTOR_POWER
        square = (1 - share) * square + share * gradient * gradient
        update = gradient / square.sqrt()
        update = update / max(1.0, float(update.square().mean().sqrt()))
        weights = weights - RATE * DECAY * weights - RATE * update
    return weights


EXACT = {"AdamW": exact_steps, "Lion": exact_lion_steps, "Adafactor": exact_adafactor_steps}
"""Class -> its published steps. Another class is held against itself in float64 on the CPU."""


def steps_of(name: str, device: str, dtype: torch.dtype) -> torch.Tensor:
    """The weights after the steps of an implementation, on its device."""
    import torch

    from loradock.model import optimizer

    weights = torch.nn.Parameter(start().to(device, dtype))
    values = {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
    own = {argument: values[argument] for argument in OPTIMIZERS[name].hyperparameters}
    optimiser = optimizer.by_name(name, [weights], **own)
    for gradient in gradients():
        weights.grad = gradient.to(device, dtype)
        optimiser.step()
    return weights.detach()


def fault(place: Device, name: str, expected: torch.Tensor | None) -> str | None:
    """What is wrong with this implementation here, or None; `expected` None: held against itself in float64."""
    import torch

    try:
        if expected is None:
            expected = steps_of(name, "cpu", torch.float64)
        made = steps_of(name, place.device, torch.float32)
        place.finish()
    except (RuntimeError, ImportError, AttributeError, NotImplementedError) as failure:
        if is_full(failure):
            raise
        return f"failed: {first_line(failure)}"
    moved = expected - start()
    off = float((made.cpu().double() - expected).norm() / moved.norm())
    return (
        None
        if math.isfinite(off) and off <= OPTIMIZERS[name].tolerance
        else f"does not match {OPTIMIZERS[name].kind} in float64"
    )


CHECK = Check(
    name="optimizer",
    group="compute",
    proves="Each optimiser of train.optimizer that this device has matches the same steps in float64.",
    look=look,
    level="compute",
    limit_seconds=60,
    depends_on=(*LOADED, "device", "optimizer"),
)
