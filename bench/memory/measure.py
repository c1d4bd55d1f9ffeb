"""Live bytes of one real micro-step of the fast engine, beside what the memory model says of it."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.memory.live import LiveBytes
from bench.memory.models import facts, flat_batch
from loradock.plan.memory.fast import FastMemory, Setting, Shape
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.optimizer import FlatAdamW

HELD = ("base weights", "expanded scales", "adapters and gradients", "dense weights")
MOVING = ("activations", "in flight", "batch", "dequantised layer")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Bytes of one shape, measured and expected: what is held all the time, the optimiser's, and the peaks beyond."""

    shape: Shape
    held: tuple[int, int]
    optimizer: tuple[int, int]
    training: tuple[int, int]
    evaluation: int


class Measurement:
    """Measures shapes of one model in turn. `live` has seen the model being made, and has counted nothing else.

    Workspace inside attention's kernels is neither seen nor expected here. `document`: tokens of each document.
    """

    def __init__(
        self, model: Any, live: LiveBytes, *, attention: Attention, kernels: Kernels, document: int, name: str
    ) -> None:
        self.model, self.live = model, live
        self.attention, self.kernels, self.document = attention, kernels, document
        self.dtype = model.get_input_embeddings().weight.dtype
        setting = Setting(
            quantization="nf4",
            double_quant=True,
            dtype=str(self.dtype).removeprefix("torch."),
            rank=model.peft_config["default"].r,
            on_gpu=kernels.NAME == "triton",
            has_flash=False,
            longest_tokens=0,
            mean_tokens=document,
        )
        self.expected = FastMemory(facts(model, name=name), setting)

    def of(self, shape: Shape) -> Found:
        """Measure a micro-step, an evaluation and an update in this shape."""
        gc.collect()
        with self.live:
            engine = FastModel(
                self.model,
                positions=self.document,
                dtype=self.dtype,
                attention_of=lambda _: self.attention,
                kernels=self.kernels,
                checkpointed=shape.checkpointed,
            )
            if self.expected.setting.on_gpu:
                for group in (each for layer in engine.layers for each in layer.groups()):
                    group.weight.is_launched = True  # also without a GPU, where launches do nothing
            engine.keep_dense(shape.cached)
        held = self.live.now
        with self.live:
            batch = flat_batch(shape.tokens, document=self.document, device=engine.adapters.values.device.type)
        training = self.peak(lambda: engine.loss_and_gradients(batch, scale=1.0)) - held
        evaluation = self.peak(lambda: engine.loss(batch)) - held
        parts = self.expected.parts(shape)
        return Found(
            shape=shape,
            held=(held, sum(parts[part] for part in HELD)),
            optimizer=(self.moments(engine), parts["optimiser state"]),
            training=(training, sum(parts[part] for part in MOVING)),
            evaluation=evaluation,
        )

    def peak(self, work: Callable[[], object]) -> int:
        """The most that lived while `work` ran."""
        with self.live.within(), torch.no_grad():
            work()
        return self.live.peak

    def moments(self, engine: FastModel) -> int:
        """Bytes of the optimiser's state, made as a run makes it, at its first update."""
        adapters, before = engine.adapters, self.live.now
        optimizer = FlatAdamW(adapters, [adapters.parameters], lr=1e-4, weight_decay=0.0)
        if adapters.values.is_meta:  # no fused update there; its state is the same
            optimizer.param_groups[0].update(fused=False, foreach=False)
        with self.live:
            optimizer.step()
        return self.live.now - before


def as_dict(found: Found) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(found)
