"""The fast engine as the stages see it: it reads the model, chooses what computes it, checks it, and trains."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch
import torch.distributed

from loradock.plan.context import Decision
from loradock.training import recovery
from loradock.training.backends.fast import attention, self_check
from loradock.training.backends.fast.families.base import Unfit
from loradock.training.backends.fast.kernels import kernels_for
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.trainer import FastTrainer
from loradock.training.job import (
    Decided,
    Emit,
    Job,
    Outcome,
    Unsound,
)
from loradock.training.saving import Saver


class FastEngine:
    """Trains with `FastTrainer`."""

    name = "fast"

    def __init__(self) -> None:
        self.ready: tuple[FastModel, tuple[Decision, ...]] | None = None

    def prepare(self, job: Job) -> tuple[str, ...]:
        """Read the model and hold it against PEFT; see `engine.base.Engine`. Unsound also where no family serves it."""
        self.ready = made_ready(job)
        return ()

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`. Prepares, where nobody has."""
        model, found = self.ready or made_ready(job)
        emit(Decided(decisions=found))
        return recovery.run(job, emit, partial(trainer_of, model=model))


def made_ready(job: Job) -> tuple[FastModel, tuple[Decision, ...]]:
    """The job's model as it will be trained, and what was decided and found. Unsound where it is not to be trained."""
    try:
        model, decisions = build(job)
    except Unfit as error:
        raise Unsound(f"the fast engine cannot train this model: {error}", hint="--set engine=trl") from error
    found = self_check.check(model, job)
    if torch.cuda.is_available():  # what the comparison took counts neither as the run's peak nor as its own
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return model, (*decisions, Decision(name="self-check", value="passed", why=str(found)))


def trainer_of(job: Job, emit: Emit, saver: Saver, *, model: FastModel) -> FastTrainer:
    """A trainer over the model, whose weights may have been put back since the last one."""
    if job.world_size > 1:
        torch.distributed.broadcast(model.adapters.values, src=0)
    model.adapters.refresh()
    return FastTrainer(job, emit, saver, model=model)


def build(job: Job) -> tuple[FastModel, tuple[Decision, ...]]:
    """The fast engine's view of the job's model, and what computes it. Unfit where no family serves it."""
    plan, asked = job.plan, job.config.model
    device = next(job.model.parameters()).device
    dtype = getattr(torch, plan.compute_dtype.value)
    backend, why = attention.choose(
        device=device.type,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
        dtype=dtype,
        head_dim=head_size(job.model.config),
        softcap=getattr(job.model.config, "attn_logit_softcapping", None),
        has_flash_attn=plan.attention.value == "flash_attention_2",
        asked="auto" if asked.attention == "eager" else asked.attention,  # eager is for the reference alone
    )
    kernels = kernels_for(device, plan.kernels.value)
    model = FastModel(
        job.model,
        positions=plan.data.limit_tokens,
        dtype=dtype,
        attention=backend,
        kernels=kernels,
        checkpointed=plan.checkpointed_layers.value,
    )
    return model, (Decision(name="attention over documents", value=backend.name, why=why),)


def head_size(config: Any) -> int:
    """The size of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
