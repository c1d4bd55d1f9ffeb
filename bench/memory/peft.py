"""What a micro-step of PEFT's path, as the peft backend computes it, takes of the CUDA allocator, against the plan."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.memory import mixtures
from bench.memory.allocator import RANK, Taken, afresh, empty, subject
from loradock.plan.memory import peft
from loradock.plan.memory.peft import Batch
from loradock.training.objectives.supervised import balancing_of, name_counts

METRICS = ("log_probs", "entropy", "is_top1")
"""What TRL's head gives for its loss and its metrics."""


class PeftPasses:
    """One model on the device: float32 adapters under autocast, TRL's fused head, all layers recomputed or none."""

    def __init__(self, name: str, *, layers: int | None = None) -> None:
        from trl.trainer.utils import add_fused_lm_head

        self.name = name
        self.model, self.facts = subject(name, layers=layers)
        self.layers, whole = self.facts.layers, self.model.get_base_model()
        add_fused_lm_head(whole, outputs=METRICS)
        if self.facts.experts and balancing_of(whole):
            whole.config.output_router_logits = True
            name_counts(whole.config, whole)
        self.model.enable_input_require_grads()
        self.model.train()

    def step(self, batch: Batch, *, is_recomputed: bool) -> Callable[[], torch.Tensor]:
        """A micro-step over rows of one length, padded by one token, whose every token is learned."""
        if is_recomputed:
            self.model.activation_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.activation_checkpointing_disable()
        ids = torch.ones(batch.rows, batch.length, dtype=torch.int64, device="cuda")
        mask = torch.ones(batch.rows, batch.length, dtype=torch.int64)
        mask[:, -1] = 0  # rows differ in length, as a rule: then every layer keeps a mask
        mask = mask.to("cuda")

        def step() -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = self.model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False, fused_lm_head=True)
                loss = -out.log_probs.sum() / batch.tokens
            loss.backward()
            return loss.detach()

        return step

    def of(self, batch: Batch, *, is_recomputed: bool) -> Taken:
        """Two passes with an update between them."""
        trained = [each for each in self.model.parameters() if each.requires_grad]
        empty()
        with afresh(), mixtures.routed(self.facts):
            step = self.step(batch, is_recomputed=is_recomputed)
            optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
            step()
            optimizer.step()
            step()
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            optimizer.zero_grad(set_to_none=True)
            del optimizer, step
        parts = peft.expected(
            self.facts,
            batch,
            quantization="nf4",
            double_quant=True,
            dtype="bfloat16",
            rank=RANK,
            optimizer="adamw_fused",
            checkpointing=is_recomputed,
            attention="sdpa" if self.facts.has_sdpa else "eager",
            on_gpu=True,
        )
        return Taken(
            model=self.name,
            engine="peft",
            tokens=batch.tokens,
            layers=self.layers,
            recomputed=self.layers * is_recomputed,
            cached=0,
            allocated=allocated,
            reserved=reserved,
            plan=parts["total"] - parts["runtime"],
        )
