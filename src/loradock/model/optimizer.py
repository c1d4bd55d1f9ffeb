"""The optimiser of a run, made: the class that the catalog names, over the trainable parameters in their groups."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from loradock.catalog import optimizers
from loradock.config.sections.train import TrainConfig

UNDECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
"""Names of parameters without weight decay, as transformers' trainer has them."""


def of_run(model: Any, name: str, train: TrainConfig) -> Any:
    """The optimiser that a plan names, over a model's trainable parameters, as `train` sets it.

    An 8-bit state is block-wise quantised (Dettmers et al. 2022), but for embeddings that are trained.
    """
    known = optimizers.named(name)
    if known.state_bits != optimizers.FLOAT32_BITS:
        keep_embeddings_whole(model)
    return by_name(name, parameter_groups(model, train), **known.settings(train))


def by_name(name: str, parameters: Iterable[Any], **hyperparameters: Any) -> Any:
    """The optimiser of that name over parameters, or groups of them; `hyperparameters` by the catalog's names."""
    known = optimizers.named(name)
    return getattr(importlib.import_module(known.module), known.kind)(parameters, **known.options, **hyperparameters)


def keep_embeddings_whole(model: Any) -> None:
    """Have bitsandbytes keep the moments of embeddings in 32 bits."""
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def parameter_groups(model: Any, train: TrainConfig) -> list[dict[str, Any]]:
    """The trainable parameters with and without decay; with LoRA+ each of the two by learning rate, that of A first."""
    groups = decay_groups(model, train.weight_decay)
    if train.loraplus_lr_ratio == 1:
        return groups
    return [
        {**group, "params": parameters, "lr": train.learning_rate * ratio}
        for group in groups
        for parameters, ratio in zip(by_rate(model, group["params"]), lr_ratios(train), strict=True)
    ]


def by_rate(model: Any, parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Parameters that learn at the rate of A, and at that of B (Hayou et al. 2024): B, and vectors, as PEFT has it."""
    chosen = {id(parameter) for parameter in parameters}
    slower: list[Any] = []
    faster: list[Any] = []
    for name, parameter in model.named_parameters():
        if id(parameter) in chosen:
            (faster if "lora_B" in name or parameter.ndim == 1 else slower).append(parameter)
    return slower, faster


def lr_ratios(train: TrainConfig) -> tuple[float, ...]:
    """The learning rates of `by_rate`, as shares of `train.learning_rate`."""
    return 1.0, train.loraplus_lr_ratio


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters in the two groups of transformers' trainer: with decay, and without (norms, biases).

    Checkpoints keep an optimiser's state by the place of a parameter in them.
    """
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], UNDECAYED))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for name, parameter in trained if name in decayed], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trained if name not in decayed], "weight_decay": 0.0},
    ]
