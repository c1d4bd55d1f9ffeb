"""The micro-steps that are compared: forward, backward, gradients added; no optimiser.

`trl` is what TRL's SFTTrainer computes by default: transformers' model with PEFT's adapters, TRL's fused output head,
autocast to bfloat16, adapters in bfloat16. `fast` is the fast engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.host.models import adapted
from bench.memory.models import flat_batch
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.model import FastModel

MicroStep = Callable[[], torch.Tensor]
METRICS = ("log_probs", "entropy", "is_top1")
"""What TRL's head gives for its loss and its metrics."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is computed: a config's values, tokens of a micro-batch and of each document, device, compute dtype."""

    values: dict[str, Any]
    tokens: int
    document: int
    device: str
    dtype: torch.dtype


def trl(setting: Setting, *, is_checkpointed: bool) -> MicroStep:
    """TRL's, over rows of one length and without an attention mask (which costs more kernels and a wait)."""
    from trl.trainer.utils import add_fused_lm_head

    is_half = setting.dtype == torch.bfloat16
    model = adapted(setting.values, dtype=setting.dtype, device=setting.device, adapters=setting.dtype)
    add_fused_lm_head(model.get_base_model(), outputs=METRICS)
    if is_checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    rows = setting.tokens // setting.document
    ids = torch.ones(rows, setting.document, dtype=torch.int64, device=setting.device)

    def micro_step() -> torch.Tensor:
        with torch.autocast(setting.device, dtype=torch.bfloat16, enabled=is_half):
            out = model(input_ids=ids, labels=ids, use_cache=False, fused_lm_head=True)
            loss = -out.log_probs.sum() / setting.tokens
        loss.backward()
        return loss.detach()

    return micro_step


def fast(
    setting: Setting, *, attention: Attention, kernels: Kernels, is_checkpointed: bool = False, is_cached: bool = False
) -> MicroStep:
    """The fast engine's, over documents of one length; every layer checkpointed or cached, or none."""
    layers = setting.values["num_hidden_layers"]
    model = FastModel(
        adapted(setting.values, dtype=setting.dtype, device=setting.device, adapters=torch.float32),
        positions=setting.document,
        dtype=setting.dtype,
        attention_of=lambda _: attention,
        kernels=kernels,
        checkpointed=layers if is_checkpointed else 0,
    )
    model.keep_dense(layers if is_cached else 0)
    for group in (each for layer in model.layers for each in layer.groups()):
        group.weight.is_launched = True  # also on a CPU, where launches are silent
    batch = flat_batch(
        setting.tokens, document=setting.document, device=setting.device, vocabulary=setting.values["vocab_size"]
    )

    @torch.no_grad()
    def micro_step() -> torch.Tensor:
        return model.loss_and_gradients(batch, scale=1 / setting.tokens)

    return micro_step
