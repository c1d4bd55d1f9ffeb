"""The optimisers that a plan names, over the adapter's parameters."""

from __future__ import annotations

from typing import Any

import torch

from loradock.training.backends.autograd import decay_groups
from loradock.training.job import Job

BITS = 8


def optimizer_of(job: Job) -> Any:
    """The plan's optimiser, its parameters in the groups of `decay_groups`; AdamW (Loshchilov and Hutter 2019).

    The 8-bit ones keep block-wise quantised moments (Dettmers et al. 2022), but for embeddings that are trained.
    """
    train, name = job.config.train, job.plan.optimizer.value
    groups = decay_groups(job.model, train.weight_decay)
    if not name.endswith("8bit"):
        return torch.optim.AdamW(groups, lr=train.learning_rate, fused=name == "adamw_fused")
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in job.model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    is_paged = name.startswith("paged")
    return bitsandbytes.optim.AdamW(groups, lr=train.learning_rate, optim_bits=BITS, is_paged=is_paged)
