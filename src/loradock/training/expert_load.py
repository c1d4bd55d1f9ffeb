"""How tokens spread over a mixture's experts: counted where a router's choice enters a layer's experts, on the device.

A document without a label is not counted: so is the padding of a pack, and what an idle pass computes. Nor is padding
of rows, a recomputed layer's second forward, or a pass without training. Counts are read back once a metric line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed

from loradock.data.collate import IGNORED
from loradock.model.experts import layout


class ExpertLoad:
    """Pairs of token and expert by expert, of every layer of a model that has experts, since the last metric line."""

    def __init__(self, model: Any) -> None:
        layers = [module for _, module in layout.modules(model)]
        self.experts = [getattr(module, layout.keys(module)[0]).shape[0] for module in layers]
        self.counts: list[torch.Tensor] = []
        self.real: torch.Tensor | None = None

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """None where the model has no experts that transformers computes by its interface."""
        return cls(model) if any(True for _ in layout.modules(model)) else None

    def watch(self, model: Any) -> Self:
        """Count where the model's own code calls its experts."""
        for index, (_, module) in enumerate(layout.modules(model)):
            module.register_forward_pre_hook(self.hook(index), with_kwargs=True)
        return self

    @contextmanager
    def counting(self, real: torch.Tensor) -> Iterator[None]:
        """Inside, passes are counted over tokens of which these are real: bool, or how often, [tokens]."""
        self.real = real
        try:
            yield
        finally:
            self.real = None

    def hook(self, layer: int) -> Any:
        """What is called before a layer's experts are."""

        @torch.compiler.disable
        def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            chosen = kwargs["top_k_index"] if "top_k_index" in kwargs else args[1]
            self.add(layer, chosen)

        return count

    @torch.no_grad()
    def add(self, layer: int, chosen: torch.Tensor) -> None:
        """Count the experts [tokens, k] that a layer's router chose for those tokens that are real."""
        real = self.real
        if real is None or len(chosen) != real.numel():
            return
        if not self.counts:
            self.counts = self.zeros(chosen.device)
        weights = real.unsqueeze(-1).expand(chosen.shape).to(torch.int64)
        self.counts[layer].index_add_(0, chosen.reshape(-1), weights.reshape(-1))

    def zeros(self, device: torch.device) -> list[torch.Tensor]:
        """No pair for any expert of any layer: int64 [experts] each."""
        return [torch.zeros(count, dtype=torch.int64, device=device) for count in self.experts]

    def window(self, device: torch.device) -> dict[str, float]:
        """What a metric line says of the steps since the last, over all ranks, which call this together."""
        counts = self.counts or self.zeros(device)
        self.counts = []
        flat = torch.cat(counts)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(flat)
        layers = [each.tolist() for each in flat.cpu().split([len(each) for each in counts])]
        return metrics([each for each in layers if sum(each)])


def real_slots(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Which slots hold tokens of documents that are learned from: bool [slots], in the order of the flat inputs."""
    ids = tensors["input_ids"]
    real = tensors["attention_mask"].bool() if "attention_mask" in tensors else torch.ones_like(ids, dtype=torch.bool)
    if "labels" in tensors:
        labelled = tensors["labels"] != IGNORED
        if "position_ids" in tensors:
            documents = (tensors["position_ids"][0] == 0).cumsum(0) - 1
            labels_of = torch.zeros_like(documents).index_add_(0, documents, labelled[0].to(documents.dtype))
            real = real & (labels_of[documents] > 0)
        else:
            real = real & labelled.any(dim=-1, keepdim=True)
    return real.reshape(-1)


def metrics(layers: Sequence[Sequence[int]]) -> dict[str, float]:
    """Of the counts by layer and expert: none where nothing was counted.

    `expert_entropy`: the entropy of a layer's load over that of an even one, mean of the layers; 1 is even, 0 one
    expert alone. `unused_expert_share`: of the experts of all layers. `tokens_per_expert`: their mean.
    """
    if not layers:
        return {}
    experts = sum(map(len, layers))
    return {
        "expert_entropy": sum(map(evenness, layers)) / len(layers),
        "unused_expert_share": sum(each.count(0) for each in layers) / experts,
        "tokens_per_expert": sum(map(sum, layers)) / experts,
    }


def evenness(counts: Sequence[int]) -> float:
    """The entropy of a load over that of an even one."""
    total = sum(counts)
    entropy = -sum(count / total * math.log(count / total) for count in counts if count)
    return entropy / math.log(len(counts)) if len(counts) > 1 else 1.0
