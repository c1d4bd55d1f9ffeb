"""The sharded engine as the stages see it: it cuts the model, proves that it is cut, trains, joins the adapter."""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.utils import add_fused_lm_head

from loradock.errors import ModelError
from loradock.model.spread import decoder_layers
from loradock.plan.context import Decision
from loradock.training import packing_check, recovery
from loradock.training.backends.fsdp import adapters
from loradock.training.backends.fsdp.sharding import shard
from loradock.training.backends.fsdp.trainer import ShardedTrainer
from loradock.training.checkpoint import state
from loradock.training.job import (
    Decided,
    Emit,
    Job,
    Outcome,
)


class ShardedEngine:
    """Trains with `ShardedTrainer`."""

    name = "sharded"

    def prepare(self, job: Job) -> tuple[str, ...]:
        """Nothing: what there is to look at are the parts, once `run` has cut the model up."""
        return ()

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`. The model's adapter is whole again afterwards.

        Also raises EnvironmentUnfit where the model does not come out sharded, ModelError where packed documents see
        one another.
        """
        if job.resume:
            state.restore_adapter(job.model, job.resume)
        adapters.broadcast(job.model)
        prepare(job.model, checkpointed=job.plan.checkpointed_layers.value)
        share = shard(job.model, cpu_offload=job.plan.cpu_offload.value)
        found: list[Decision[Any]] = [Decision(name="share of the model", value=share.part, why=str(share))]
        if job.plan.packing.value:
            change = packing_check.of_job(job)
            why = f"documents do not see one another: logits move by {change:.1e} of the largest"
            found.append(Decision(name="packing check", value="passed", why=why))
        emit(Decided(decisions=tuple(found)))
        if job.rank and job.config.lora.dropout:  # each process draws masks of its own
            torch.manual_seed(job.config.train.seed + job.rank)
        outcome = recovery.run(job, emit, ShardedTrainer)
        adapters.join(job.model, everywhere=True)
        return outcome


def prepare(model: Any, *, checkpointed: int) -> None:
    """What is put into the model before it is cut: the loss in its own forward, and which layers are computed again.

    The first `checkpointed` layers are. ModelError for a model whose layers do not offer it.
    """
    whole = model.get_base_model()
    add_fused_lm_head(whole)
    if not checkpointed:
        return
    if not getattr(whole, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{type(whole).__name__} cannot compute its layers again", hint="--set train.checkpointing=false"
        )
    whole.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in decoder_layers(model)[checkpointed:]:
        layer.gradient_checkpointing = False
