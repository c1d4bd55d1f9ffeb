"""Supervised fine-tuning: the negative log-likelihood of the labelled tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from trl.trainer.utils import add_fused_lm_head

from loradock.data.collate import IGNORED, MicroBatch, collate
from loradock.training.objectives.base import Objective

LARGEST_EXPONENT = 700.0
"""exp of more does not fit a float."""


class Supervised(Objective):
    """Cross-entropy without the logits of a whole micro-batch in memory: TRL's head computes them in tiles.

    A mixture of experts adds its load-balancing loss (Shazeer et al. 2017) with the coefficient of its config.
    """

    balancing = 0.0

    def prepare(self, model: Any) -> None:
        """The head, and router logits where the model's config gives them a weight."""
        add_fused_lm_head(model.get_base_model())
        config = model.config.get_text_config()
        coefficient = getattr(config, "router_aux_loss_coef", 0.0)
        self.balancing = coefficient if hasattr(config, "output_router_logits") else 0.0
        if hasattr(config, "router_aux_loss_coef"):
            config.output_router_logits = bool(self.balancing)

    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Padded rows, or one packed row; see `data.collate`."""
        made = collate(batch, pad_token_id=pad_token_id, pad_to_multiple=pad_to_multiple)
        return {name: each for name, each in made.items() if name != "seq_lengths"}, made["input_ids"].numel()

    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, share: float) -> torch.Tensor:
        """Over the labelled tokens, each predicted from those before it."""
        out = model(**tensors, use_cache=False, fused_lm_head=True)
        loss = -out.log_probs.float().sum()
        if self.balancing and share:
            loss = loss + share * out.label_mask.sum() * self.balancing * out.aux_loss
        return loss

    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every label ignored."""
        return {**tensors, "labels": torch.full_like(tensors["labels"], IGNORED)}

    def metrics(self, loss: float) -> dict[str, float]:
        """Perplexity: exp of the loss per token."""
        return {"perplexity": math.exp(min(loss, LARGEST_EXPONENT))}
