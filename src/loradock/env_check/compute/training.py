"""Three steps of QLoRA on a tiny model, once for each attention; where one is wrong, again without 4-bit."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import LOADED, Check, Finding, Intent
from loradock.env_check.compute import tiny_model
from loradock.env_check.compute.exact_attention import Case, cases
from loradock.env_check.compute.implementations import BACKENDS, implementations, is_incapable, only, wanted
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.compute.verdict import RAISES, Trial, judge
from loradock.env_check.remedies import as_locked
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

    from loradock.config.sections.model import ModelConfig

STEPS = 3
RATE = 1e-2
SCALE = 1024.0
LOSS_TOLERANCE = {"float32": 2e-3, "bfloat16": 5e-3, "float16": 5e-3}
GRADIENT_TOLERANCE = {"float32": 0.05, "bfloat16": 0.1, "float16": 0.1}


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to attention: its name, transformers' name for it, and the one backend of SDPA that may be used."""

    name: str
    setting: str
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the first step gives in float64: the loss, and the gradient of all adapters in one vector."""

    loss: float
    gradient: torch.Tensor


class Bench:
    """The tiny model in one storage, and its targets; each is made when it is first needed."""

    def __init__(
        self, model_config: ModelConfig, *, shape: AttentionShape, place: Device, folder: Path, weights: Any
    ) -> None:
        self.place = place
        self.shape = shape
        self._weights = weights
        self._is_nf4 = model_config.storage.is_dequantised
        self._model = tiny_model.adapted(folder, model_config, place)
        self._start = [adapter.detach().clone() for adapter in tiny_model.adapters(self._model)]
        self._targets: dict[str, Target] = {}

    def target(self, case: Case) -> Target:
        """The first step of the float64 twin."""
        import torch

        if case.name not in self._targets:
            twin = tiny_model.twin(self.shape, self._weights, case, is_quantised=self._is_nf4)
            loss = tiny_model.loss_of(twin, tiny_model.batch(case, "cpu"))
            loss.backward()
            gradient = torch.cat([adapter.grad.flatten() for adapter in tiny_model.adapters(twin)])
            self._targets[case.name] = Target(loss=float(loss.detach()), gradient=gradient)
        return self._targets[case.name]

    def train(self, way: Way, case: Case) -> str:
        """Train from the start; what is wrong, "" where nothing is. Raises what the kernels raise."""
        import torch

        self._model.get_base_model().set_attn_implementation(way.setting)
        adapters = tiny_model.adapters(self._model)
        for adapter, start in zip(adapters, self._start, strict=True):
            adapter.data.copy_(start)
        optimiser = torch.optim.AdamW(adapters, lr=RATE)
        tensors = tiny_model.batch(case, self.place.device)
        losses: list[float] = []
        gradient = None
        for _ in range(STEPS):
            losses.append(self._step(way, tensors, adapters))
            if gradient is None:
                gradient = torch.cat([adapter.grad.flatten() for adapter in adapters]).cpu().double()
            optimiser.step()
        self.place.finish()
        return fault(losses, gradient, self.target(case), self.place.dtype)

    def _step(self, way: Way, tensors: Mapping[str, torch.Tensor], adapters: Sequence[Any]) -> float:
        """Loss and gradients of one step."""
        import torch

        scale = SCALE if self.place.dtype == "float16" else 1.0
        kind = "cuda" if self.place.is_gpu else "cpu"
        is_mixed = self.place.dtype != "float32"
        with only(way.backend), torch.autocast(kind, dtype=self.place.torch_dtype, enabled=is_mixed):
            loss = tiny_model.loss_of(self._model, dict(tensors))
        self._model.zero_grad()
        (loss * scale).backward()
        for adapter in adapters:
            adapter.grad /= scale
        return float(loss.detach())


def fault(losses: Sequence[float], gradient: Any, target: Target, dtype: str) -> str:
    """What is wrong with three steps, "" where nothing is."""
    off = float((gradient - target.gradient).norm() / target.gradient.norm())
    if not all(math.isfinite(value) for value in (*losses, off)):
        return "the loss or its gradient is not finite"
    if abs(losses[0] / target.loss - 1) > LOSS_TOLERANCE[dtype]:
        return "the first loss differs from float64"
    if off > GRADIENT_TOLERANCE[dtype]:
        return "the gradient differs from float64"
    return "" if losses[-1] < losses[0] else "the loss does not fall"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """At the run's first place: what depends on the GPU alone was seen on each by the checks before."""
    remedy = as_locked(host, "torch", "transformers", "peft")
    return at_each(host, facts, plan, lambda place: _at(place, facts, plan, again=remedy), is_first_alone=True)


def _at(place: Device, facts: Facts, plan: Intent, *, again: str) -> list[Finding]:
    from transformers.utils import logging

    from loradock.config.sections.model import ModelConfig

    logging.disable_progress_bar()
    model_config = plan.config.model if plan.config else ModelConfig()
    with tempfile.TemporaryDirectory() as folder:
        weights = tiny_model.make(plan.attention, Path(folder), place)

        def bench(storage: ModelConfig) -> Bench:
            return Bench(storage, shape=plan.attention, place=place, folder=Path(folder), weights=weights)

        stored = bench(model_config)
        outcomes = {way.name: (way, attempt(stored, way)) for way in ways(place, facts, plan.attention)}
        unquantised: Bench | None = None
        trials: dict[str, Trial] = {}
        for name, (way, wrong) in outcomes.items():
            in_whole = ""
            if wrong and model_config.storage.is_quantised:
                unquantised = unquantised or bench(model_config.model_copy(update={"quantization": "none"}))
                in_whole = attempt(unquantised, way) or ""
            trials[name] = Trial(setting=way.setting, wrong=wrong or "", whole=in_whole, cannot=wrong is None)
    setting = wanted(facts, plan, place)
    return judge(trials, storage=model_config.quantization, place=str(place), wanted=setting, again=again)


def ways(place: Device, facts: Facts, shape: AttentionShape) -> list[Way]:
    """What transformers can call here: each backend of SDPA by itself, SDPA as it chooses, flash-attn, eager."""
    return [
        Way(
            name=implementation.name,
            setting=implementation.setting,
            backend=BACKENDS.get(implementation.name.removeprefix("sdpa ")),
        )
        for implementation in implementations(place, facts, shape)
        if implementation.setting and not implementation.obstacle
    ]


def attempt(bench: Bench, way: Way) -> str | None:
    """What is wrong with this way on packed documents, or, where it cannot do them, on plain ones; None: on neither.

    Raises what the GPU's memory says, and what is no kernel's doing: eager attention is plain torch.
    """
    plain, _, packed = cases(bench.shape)
    for case in (packed, plain):
        try:
            return bench.train(way, case)
        except Exception as failure:  # a kernel may fail in any way; it is said of that kernel
            if is_full(failure) or (way.name == "eager" and not isinstance(failure, RuntimeError)):
                raise
            if not is_incapable(failure):
                return f"{RAISES}{first_line(failure)}"
    return None


CHECK = Check(
    name="training",
    group="compute",
    proves="Three QLoRA steps on a tiny model match the float64 reference, with each attention implementation "
    "and SDPA backend.",
    look=look,
    level="compute",
    limit_seconds=150,
    depends_on=(*LOADED, "device", "model", "engine"),
)
