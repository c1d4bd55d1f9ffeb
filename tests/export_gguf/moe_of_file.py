"""What llama.cpp computes of a layer's experts, from a GGUF file's tensors and numbers alone (`build_moe_ffn` of its
llama-graph.cpp, and how each architecture calls it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from torch.nn import functional

SOFTMAX, SIGMOID, OF_CHOSEN = 1, 2, 3
GATING = {"gpt-oss": OF_CHOSEN, "llama4": SIGMOID}
DIVIDES = ("qwen3moe", "qwen3next", "qwen35moe", "llama", "ernie4_5-moe", "minimax-m2", "granitemoe")
"""Built in: routing weights of a token are divided by their sum; others say it by a number of the file."""
LIMIT, ALPHA = 7.0, 1.702
"""gpt-oss' gate."""


class MoeOfFile:
    """The experts of a GGUF file."""

    def __init__(self, file: Path) -> None:
        reader = gguf.GGUFReader(file)
        self.architecture = reader.fields["general.architecture"].contents()
        self.numbers = {name: field.contents() for name, field in reader.fields.items()}
        self.types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        self.tensors = {
            tensor.name: torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
            for tensor in reader.tensors
        }

    def number(self, key: str, default: Any = None) -> Any:
        """One of the architecture's numbers."""
        return self.numbers.get(f"{self.architecture}.{key}", default)

    def output(self, layer: int, inputs: torch.Tensor) -> torch.Tensor:
        """Of the experts and the shared one, for inputs [tokens, hidden]."""
        weights, chosen = self._routed(layer, inputs)
        is_before = self.architecture == "llama4"
        rows: list[torch.Tensor] = []
        for row, of_row, experts in zip(inputs, weights, chosen, strict=True):
            total = torch.zeros_like(row)
            for weight, expert in zip(of_row, experts.tolist(), strict=True):
                value = self._expert(layer, expert, row * weight if is_before else row)
                total += value if is_before else value * weight
            rows.append(total)
        return torch.stack(rows) + self._shared(layer, inputs)

    def _of(self, layer: int, name: str) -> torch.Tensor | None:
        return self.tensors.get(f"blk.{layer}.{name}")

    def _matrix(self, layer: int, name: str) -> torch.Tensor:
        return self.tensors[f"blk.{layer}.{name}.weight"]

    def _routed(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = functional.linear(inputs, self._matrix(layer, "ffn_gate_inp"), self._of(layer, "ffn_gate_inp.bias"))
        gating = GATING.get(self.architecture) or self.number("expert_gating_func", SOFTMAX)
        scores = {SOFTMAX: logits.softmax(-1), SIGMOID: logits.sigmoid(), OF_CHOSEN: logits}[gating]
        bias = self._of(layer, "exp_probs_b.bias")
        by = scores if bias is None else scores + bias
        if groups := self.number("expert_group_count", 0):
            best = by.unflatten(1, (groups, -1)).topk(2, dim=-1).values.sum(-1)
            kept = best.topk(self.number("expert_group_used_count"), dim=-1).indices
            mask = torch.full_like(best, -torch.inf).scatter(1, kept, 0.0)
            by = by + mask.repeat_interleave(by.shape[1] // groups, dim=1)
        chosen = by.topk(self.number("expert_used_count"), dim=-1).indices
        weights = scores.gather(1, chosen)
        if gating == OF_CHOSEN:
            weights = weights.softmax(-1)
        if self.architecture in DIVIDES or self.number("expert_weights_norm", False):
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.number("expert_weights_scale", 1.0), chosen

    def _expert(self, layer: int, expert: int, row: torch.Tensor) -> torch.Tensor:
        gate, up = (self._product(layer, f"ffn_{name}_exps", expert, row) for name in ("gate", "up"))
        return self._product(layer, "ffn_down_exps", expert, self._activated(gate, up))

    def _product(self, layer: int, name: str, expert: int, row: torch.Tensor) -> torch.Tensor:
        bias = self._of(layer, f"{name}.bias")
        return functional.linear(row, self._matrix(layer, name)[expert], None if bias is None else bias[expert])

    def _activated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if self.architecture != "gpt-oss":
            return functional.silu(gate) * up
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return gate * (gate * ALPHA).sigmoid() * (up + 1)

    def _shared(self, layer: int, inputs: torch.Tensor) -> torch.Tensor | float:
        if self._of(layer, "ffn_up_shexp.weight") is None:
            return 0.0
        gate, up, down = (self._matrix(layer, f"ffn_{name}_shexp") for name in ("gate", "up", "down"))
        value = functional.linear(functional.silu(inputs @ gate.T) * (inputs @ up.T), down)
        share = self._of(layer, "ffn_gate_inp_shexp.weight")
        return value if share is None else value * (inputs @ share.reshape(-1, 1)).sigmoid()
