"""What experts keep for the backward pass, counted tensor by tensor, against the plan's arithmetic."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from jobs import job_of

from loradock.config.load import load
from loradock.config.sections.model import ModelConfig
from loradock.model import load as loading
from loradock.model import shape, source
from loradock.model.experts import forward, layout
from loradock.plan.memory import experts
from loradock.plan.memory.base import weight_bytes
from loradock.plan.memory.fast import FastMemory, Setting
from loradock.plan.memory.widths import widths
from loradock.training.backends.fast import self_check
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.model import FastModel

TOKENS, RANK = 96, 4


@pytest.mark.parametrize("targets", ["all-linear", "[all-linear,experts]"])
def test_what_experts_keep_is_what_the_plan_counts(tmp_path: Path, targets: str) -> None:
    base = mixtures.make(tmp_path / "base", "qwen3_moe")
    shortcuts: dict[str, Any] = {"--model": str(base)}
    config = load(None, overrides=[f"lora.targets={targets}"], shortcuts=shortcuts, needs_inputs=False).config
    asked = ModelConfig.model_validate({"name": str(base)})
    found = shape.inspect(source.find(asked), config)
    assert found.active_parameters < found.reached_parameters
    model: Any = loading.load_whole(source.find(asked), asked, dtype=torch.bfloat16, device="cpu")
    stored: list[Any] = [matrices.parameter for matrices in layout.matrices(model)]
    held = sum(weights.stored_bytes for weights in stored)
    expected = weight_bytes(found, quantization="nf4", double_quant=True, dtype="bfloat16")
    others = sum(p.nbytes for p in model.parameters() if p.dtype == torch.bfloat16 and p.dim() < 3)
    assert held < expected - others < 1.4 * held

    module: Any = next(module for _, module in layout.modules(model))
    inputs = torch.randn(TOKENS, 64, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(TOKENS, 2, dtype=torch.bfloat16, requires_grad=True)
    chosen = torch.stack([torch.randperm(8)[:2] for _ in range(TOKENS)])
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    alive: list[torch.Tensor] = []
    factors = {
        key: forward.Factors(
            a=torch.randn(8, RANK, columns, dtype=torch.bfloat16, requires_grad=True).unbind(0),
            b=torch.randn(8, rows, RANK, dtype=torch.bfloat16, requires_grad=True).unbind(0),
            scaling=1.0,
        )
        for key, rows, columns in (("gate_up_proj", 128, 64), ("down_proj", 64, 64))
        if found.expert_targets
    }
    known = {
        tensor.untyped_storage().data_ptr()
        for tensor in (weights, *(each for factor in factors.values() for each in (*factor.a, *factor.b)))
    }
    object.__setattr__(module, forward.FACTORS, factors)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(inputs, chosen, weights)
    counted = sum(kept.values()) / TOKENS
    ranks = 2 * 2 * 2 * RANK * len(factors) / 2
    assert counted == pytest.approx(experts.kept_bytes_per_token(found, size=2) + ranks, rel=0.05)


def stored(value: Any) -> set[torch.UntypedStorage]:
    """The storages of all tensors in what a layer keeps."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage()}
    if dataclasses.is_dataclass(value):
        return set().union(*(stored(getattr(value, field.name)) for field in dataclasses.fields(value)))
    return set().union(*map(stored, value)) if isinstance(value, tuple) else set()


def kept_by_a_layer(engine: FastModel, batch: FlatBatch) -> float:
    """Bytes that a layer of a small model keeps, as the mean over all."""
    x = torch.randn(batch.tokens, 64, dtype=torch.bfloat16)
    kept = tuple(layer.forward(x, batch)[1] for layer in engine.layers)
    by_place = {storage.data_ptr(): storage.nbytes() for storage in stored(kept) if storage.data_ptr() != x.data_ptr()}
    return sum(by_place.values()) / len(kept) + x.nbytes


SETTING = Setting(
    quantization="nf4",
    double_quant=True,
    dtype="bfloat16",
    rank=4,
    on_gpu=False,
    has_flash=False,
    longest_tokens=64,
    mean_tokens=40.0,
)
WIDE = {"num_experts_per_tok": 3, "top_k_experts": 3, "moe_intermediate_size": 192}


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "kind", ["qwen3_moe", "qwen2_moe", "glm4_moe", "granitemoeshared", "gemma4_text", "glm4_moe_lite"]
)
@pytest.mark.parametrize("targets", ["all-linear", "[all-linear,experts]"])
def test_what_the_fast_engine_keeps_of_its_layers_is_what_its_plan_counts(
    targets: str, kind: str, tmp_path: Path, rows: Path
) -> None:
    """Also of experts in a layer of another shape than the plan's usual one, beside shared ones and a dense layer."""
    base = mixtures.make(tmp_path / "base", kind, **WIDE)
    settings = ("engine=fast", f"lora.targets={targets}", "model.compute_dtype=bfloat16")
    job = job_of(tmp_path, *settings, model=base, data=rows)
    engine, _ = build(job)
    batch = self_check.learned(engine, self_check.first_rows(job))
    planned = FastMemory(job.plan.model, SETTING).kept_by_layer(batch.tokens)
    assert kept_by_a_layer(engine, batch) == pytest.approx(planned, rel=0.05)


def test_dense_layers_among_experts_are_in_the_plans_room_for_dense_weights(tmp_path: Path, rows: Path) -> None:
    base = mixtures.make(tmp_path / "base", "qwen3_moe", mlp_only_layers=[0], intermediate_size=256)
    job = job_of(tmp_path, "engine=fast", model=base, data=rows)
    engine, _ = build(job)
    assert widths(job.plan.model, rank=RANK).widest == engine.room.elements == 2 * 256 * 64
