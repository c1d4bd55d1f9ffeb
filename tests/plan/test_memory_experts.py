"""What experts keep for the backward pass, counted tensor by tensor, against the plan's arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch

from loradock.config.load import load
from loradock.config.sections.model import ModelConfig
from loradock.model import load as loading
from loradock.model import shape, source
from loradock.model.experts import forward, layout
from loradock.plan.memory import experts
from loradock.plan.memory.base import weight_bytes

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
