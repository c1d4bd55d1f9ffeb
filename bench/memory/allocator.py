"""What torch's CUDA allocator takes for a pass of a real model's size, against the plan: allocated, reserved, launches.

Needs a CUDA device. Without one, a stand-in whose launches do nothing serves: the allocator and the dispatcher are the
real ones, so bytes and the host's work are those of a GPU, and nothing is computed (`tests/fakegpu`).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.memory import mixtures
from bench.memory.models import adapted, facts, flat_batch
from bench.train.models import settings
from loradock.facts import ModelFacts
from loradock.machine.library_variables import ALLOCATOR
from loradock.plan.memory.fast import FastMemory, Setting, Shape
from loradock.training.backends.fast import attention
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.kernels import fused
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.objectives.supervised import balancing_of

DOCUMENT = 166
POSITIONS = 1024
RANK = 16
VARIED = 4
"""Passes of 80 to 100 % of the budget after the largest one, as packs differ."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Bytes of one shape: the allocator's two peaks, and the plan without what no allocator sees (runtime)."""

    model: str
    engine: str
    tokens: int
    layers: int
    recomputed: int
    cached: int
    allocated: int
    reserved: int
    plan: int
    document: int = DOCUMENT

    @property
    def ratio(self) -> float:
        """The plan over what was reserved; below 1 it promises too little."""
        return self.plan / self.reserved

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "ratio": round(self.ratio, 4)}


def as_a_run_does() -> None:
    """The allocator's segments as `loradock train` asks for them."""
    for settings_of_allocator in ALLOCATOR.values():
        torch._C._accelerator_setAllocatorSettings(settings_of_allocator)


def shapes(layers: int, *, budgets: tuple[int, ...]) -> Iterator[Shape]:
    """None, half and all layers recomputed, without dense weights and with those of half the layers."""
    for tokens in budgets:
        for recomputed in (0, layers // 2, layers):
            for cached in (0, layers // 2):
                yield Shape(tokens=tokens, checkpointed=recomputed, cached=cached)


@contextmanager
def afresh() -> Iterator[None]:
    """Begin with what is held alone, and give everything back that was taken within."""
    empty()
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        empty()


def empty() -> None:
    """Give back what the allocator and cuBLAS hold unused."""
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()


def subject(name: str, *, layers: int | None = None) -> tuple[Any, ModelFacts]:
    """(PeftModel, its facts) of a real config, with fewer layers where asked for."""
    if name in mixtures.PUBLISHED_NAMES:
        return mixtures.made(name, rank=RANK, layers=layers)
    values = settings(name)
    values["num_hidden_layers"] = layers or values["num_hidden_layers"]
    model = adapted(values, dtype=torch.bfloat16, device="cuda", rank=RANK)
    return model, facts(model, name=name)


def attention_of(head_dim: int) -> Attention:
    """What attends by heads of this size on the card of the figures, sm90."""
    asked = {"device": "cuda", "capability": (9, 0), "dtype": torch.bfloat16, "softcap": None}
    return attention.choose(**asked, head_dim=head_dim, has_flash_attn=False, asked="auto")[0]


class FastPasses:
    """One model on the device, whose passes by the fast engine are measured shape by shape."""

    def __init__(self, name: str, *, layers: int | None = None, document: int = DOCUMENT) -> None:
        """`document`: tokens of each document."""
        self.name, self.document = name, document
        self.model, self.facts = subject(name, layers=layers)
        self.layers = self.facts.layers
        setting = Setting(
            quantization="nf4",
            double_quant=True,
            dtype="bfloat16",
            rank=RANK,
            on_gpu=True,
            has_flash=True,
            longest_tokens=document,
            mean_tokens=document,
        )
        self.expected = FastMemory(self.facts, setting)

    def engine(self, shape: Shape) -> FastModel:
        """The fast engine's view of the model, as `loradock train` makes it."""
        engine = FastModel(
            self.model,
            positions=max(POSITIONS, self.document),
            dtype=torch.bfloat16,
            attention_of=attention_of,
            kernels=fused,
            checkpointed=shape.checkpointed,
        )
        engine.balance.coefficient = balancing_of(self.model.get_base_model()) if engine.has_experts else 0.0
        empty()
        engine.keep_dense(shape.cached)
        return engine

    def documents(self, tokens: int) -> FlatBatch:
        """Documents on the device, every token supervised but the last of each."""
        return flat_batch(tokens, document=self.document, device="cuda")

    @torch.no_grad()
    def step(self, engine: FastModel, batch: FlatBatch) -> torch.Tensor:
        """A micro-step."""
        return engine.loss_and_gradients(batch, scale=1 / batch.tokens)

    def of(self, shape: Shape) -> Taken:
        """The largest pass, an update, passes that differ, and an evaluation."""
        with afresh(), mixtures.routed(self.facts):
            engine = self.engine(shape)
            adapters, draw = engine.adapters, random.Random(0)
            optimizer = FlatAdamW(adapters, [adapters.parameters], lr=1e-4, weight_decay=0.0)
            self.step(engine, self.documents(shape.tokens))
            with torch.no_grad():
                optimizer.step()
            self.step(engine, self.documents(shape.tokens))  # now beside the optimiser's state
            for _ in range(VARIED):
                self.step(engine, self.documents(int(shape.tokens * draw.uniform(0.8, 1.0))))
            with torch.no_grad():
                engine.loss(self.documents(shape.tokens))
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            engine.keep_dense(0)
            del engine, optimizer, adapters
        parts = self.expected.parts(shape)
        return Taken(
            model=self.name,
            document=self.document,
            engine="fast",
            tokens=shape.tokens,
            layers=self.layers,
            recomputed=shape.checkpointed,
            cached=shape.cached,
            allocated=allocated,
            reserved=reserved,
            plan=parts["total"] - parts["runtime"],
        )
