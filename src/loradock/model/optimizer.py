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
    return by_name(name, decay_groups(model, train.weight_decay), **known.settings(train))


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
