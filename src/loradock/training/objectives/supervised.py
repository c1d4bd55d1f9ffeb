"""Supervised fine-tuning: the negative log-likelihood of the labelled tokens."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.distributed

from loradock.config.schema import RunConfig
from loradock.data.collate import IGNORED, MicroBatch, collate
from loradock.data.steps import Evaluation
from loradock.model.experts import layout
from loradock.training.objectives.base import Evaluated, Objective, Poll
from loradock.training.passes import MicroStep, Passes, StepInputs

LARGEST_EXPONENT = 700.0
"""exp of more does not fit a float."""
BALANCING = "load_balancing_loss_func"
"""What transformers' modules that compute such a loss call it."""


class Supervised(Objective):
    """Cross-entropy without the logits of a whole micro-batch in memory: TRL's head computes them in tiles.

    A mixture of experts adds its load-balancing loss (Fedus et al. 2021, equations 4 to 6) with the coefficient of its
    config: of a step the mean over its micro-batches on all ranks, each weighted by its learned tokens.
    """

    balancing = 0.0

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The mean over the supervised tokens of all micro-batches on all ranks."""
        tokens = inputs.batches["rows"].supervised_tokens
        return self.likelihood(backend, inputs, scale=1 / max(1, tokens), step=step, poll=poll)

    def likelihood(self, backend: Passes, inputs: StepInputs, *, scale: float, step: int, poll: Poll) -> torch.Tensor:
        """Forward and backward of every micro-batch: float32 [1], `scale` times the summed loss."""
        total = torch.zeros(1, device=backend.device)
        batches = backend.micro_batches(inputs, "rows")
        for index, batch in enumerate(batches):
            poll()
            at = MicroStep(step=step, index=index, count=len(batches))
            total += backend.forward_backward(batch, scale=scale, at=at)
        return total

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """The loss over all supervised tokens, not a mean of batch means; of each set by name, too."""
        turns = evaluation.turns["rows"]
        names = turns.names
        sums = torch.zeros(max(1, len(names)), 2, dtype=torch.float64, device=backend.device)
        for batch in turns:
            poll()
            (micro_batch,) = batch.micro_batches
            tensors, _ = backend.tensors(micro_batch)
            sums[batch.set_index, 0] += backend.loss_sum(tensors).double()
            sums[batch.set_index, 1] += micro_batch.supervised_tokens
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        total = sums.sum(dim=0)
        loss = float(total[0] / total[1].clamp(min=1))
        return Evaluated(
            loss=loss,
            metrics=self.metrics(loss),
            losses={name: float(loss / count) for name, (loss, count) in zip(names, sums, strict=False) if count},
            supervised_tokens=int(total[1]),
        )

    def metrics(self, loss: float) -> dict[str, float]:
        """What an evaluation reports besides its loss a token: perplexity, exp of it."""
        return {"perplexity": math.exp(min(loss, LARGEST_EXPONENT))}

    def prepare(self, model: Any) -> None:
        """The head, and router logits where the model has routers and its config gives them a weight."""
        from trl.trainer.utils import add_fused_lm_head  # a second: it brings pandas and datasets

        whole = model.get_base_model()
        add_fused_lm_head(whole)
        config = model.config.get_text_config()
        self.balancing = balancing_of(whole)
        if hasattr(config, "router_aux_loss_coef"):
            config.output_router_logits = bool(self.balancing)
        if self.balancing:
            name_counts(config, whole)

    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Padded rows, or one packed row; see `data.collate`."""
        made = collate(batch, pad_token_id=pad_token_id, pad_to_multiple=pad_to_multiple)
        return {name: each for name, each in made.items() if name != "seq_lengths"}, made["input_ids"].numel()

    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, is_training: bool) -> torch.Tensor:
        """Over the labelled tokens, each predicted from those before it."""
        out = model(**tensors, use_cache=False, fused_lm_head=True)
        loss = -out.log_probs.float().sum()
        if self.balancing and is_training:
            loss = loss + out.label_mask.sum() * self.balancing * out.aux_loss
        return loss

    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every label ignored."""
        return {**tensors, "labels": torch.full_like(tensors["labels"], IGNORED)}


def balancing_of(model: Any) -> float:
    """The coefficient of a model's load-balancing loss; 0 where it has no routers, or its config gives them none.

    It is 0 for Llama 4, too: its config has a coefficient, and its class in transformers computes no such loss.
    """
    config = model.config.get_text_config()
    coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    return coefficient if hasattr(config, "output_router_logits") and has_balanced_routers(model) else 0.0


def name_counts(config: Any, model: Any) -> None:
    """Give a configuration the counts of experts by the names that TRL's head reads; Granite's has another."""
    matrices = next(layout.matrices(model), None)
    if matrices is not None:
        counts = {"num_experts": matrices.experts, "num_experts_per_tok": layout.used_by_a_token(model, matrices)}
        for name, count in counts.items():
            if not hasattr(config, name):
                setattr(config, name, count)


def has_balanced_routers(model: Any) -> bool:
    """Whether a model has layers of a kind whose output is router logits, of which its class makes a loss."""
    recorders = (
        getattr(each, "_can_record_outputs", None) or {}
        for each in model.modules()
        if hasattr(sys.modules[type(each).__module__], BALANCING)
    )
    routers = tuple(recorder["router_logits"].target_class for recorder in recorders if "router_logits" in recorder)
    return any(isinstance(module, routers) for module in model.modules())
