"""The fast engine as the stages see it: it reads the model, chooses what computes it, and trains."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from loradock.engine import attempts
from loradock.engine.base import Emit, Job, Outcome
from loradock.engine.fast import attention
from loradock.engine.fast.families.base import Unfit
from loradock.engine.fast.kernels import kernels_for
from loradock.engine.fast.model import FastModel
from loradock.engine.fast.trainer import FastTrainer
from loradock.engine.saving import Saver
from loradock.errors import ModelError


class FastEngine:
    """Trains with `FastTrainer`."""

    name = "fast"

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`. ModelError for a model that no family serves."""
        try:
            model = model_of(job)
        except Unfit as error:
            raise ModelError(f"the fast engine cannot train this model: {error}", hint="--set engine=trl") from error
        return attempts.run(job, emit, partial(trainer_of, model=model))


def trainer_of(job: Job, emit: Emit, saver: Saver, *, model: FastModel) -> FastTrainer:
    """A trainer over the model, whose weights may have been put back since the last one."""
    model.adapters.refresh()
    return FastTrainer(job, emit, saver, model=model)


def model_of(job: Job) -> FastModel:
    """The fast engine's view of the job's model. Unfit where no family serves it."""
    plan = job.plan
    device = next(job.model.parameters()).device
    dtype = getattr(torch, plan.value("compute_dtype"))
    backend, _ = attention.choose(
        device=device.type,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
        dtype=dtype,
        head_dim=head_size(job.model.config),
        softcap=getattr(job.model.config, "attn_logit_softcapping", None),
        has_flash_attn=plan.value("attention") == "flash_attention_2",
        asked="auto",
    )
    layers = plan.model.layers
    return FastModel(
        job.model,
        positions=plan.data.limit_tokens,
        dtype=dtype,
        attention=backend,
        kernels=kernels_for(device, "auto"),
        checkpointed=layers if plan.value("checkpointing") else 0,
    )


def head_size(config: Any) -> int:
    """The size of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
