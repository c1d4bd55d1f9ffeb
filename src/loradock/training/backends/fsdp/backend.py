"""The loop of the sharded engine.

All processes make the same number of passes in the same order, since each pass gathers weights from all of them: one
that has fewer micro-batches in a step than another runs idle ones, of which nothing is learned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from loradock.data.collate import IGNORED
from loradock.distributed import collectives
from loradock.model import dtypes
from loradock.model.adapters import trainable
from loradock.training.backends.fsdp.adapters import as_one
from loradock.training.backends.fsdp.optimizer import Kept, ShardedAdamW
from loradock.training.backends.fsdp.sharding import device_of, watch_exchanges
from loradock.training.backends.trl.inputs import model_inputs
from loradock.training.job import Emit, Job
from loradock.training.loop import Loop
from loradock.training.saving import Saver


class ShardedTrainer(Loop):
    """One attempt at a job by the sharded engine. The checkpoint's adapter was taken up before the model was cut."""

    def __init__(self, job: Job, emit: Emit, saver: Saver) -> None:
        train = job.config.train
        self.model = job.model
        super().__init__(
            job,
            emit,
            saver,
            device=device_of(job.model),
            optimizer=ShardedAdamW(
                trainable(job.model), learning_rate=train.learning_rate, weight_decay=train.weight_decay
            ),
            as_tensors=model_inputs(job),
        )

        self.is_on_card = self.device.type == "cuda"
        watch_exchanges(self.model, self.exchanging)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Inside, this process waits for all others. On a card its host goes on, and stops anywhere in the passes."""
        with self.pace.waiting(), nullcontext() if self.is_on_card else collectives.waiting(self.job.peers):
            yield

    def begin(self) -> None:
        """Dropout is on."""
        self.model.train()

    def gradients(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Those of one step into the parts; see `Loop.gradients`."""
        with collectives.waiting(self.job.peers) if self.is_on_card else nullcontext():
            return self.passes(inputs)

    def passes(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Forward and backward of every micro-batch. FSDP averages gradients over the processes, hence the factor."""
        scale = 1 / max(1, inputs["supervised_tokens"])
        total = torch.zeros((), device=self.device)
        with self.exchanging():
            batches = in_step(inputs["micro_batches"])
        added = sum(each["input_ids"].numel() for each in batches[len(inputs["micro_batches"]) :])
        inputs["counts"]["slots"] += added
        inputs["counts"]["idle"] += added
        for tensors in batches:
            self.poll()
            loss = self.loss_sum(tensors) * scale
            (loss * self.job.world_size).backward()
            total += loss.detach()
        return total

    def loss_sum(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""
        on_device = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
        with self.autocast():
            return -self.model(**on_device, use_cache=False, fused_lm_head=True).log_probs.sum()

    def autocast(self) -> AbstractContextManager[Any]:
        """Products in the compute dtype; each adapter is used once a pass, so that no cast copy of it is kept."""
        dtype = getattr(torch, self.job.plan.compute_dtype.value)
        if dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=False)

    def sum_up(self) -> None:
        """Each backward has summed up its own."""

    def clip(self) -> torch.Tensor:
        """The norm of the whole gradient, which is cut to the largest allowed."""
        norm = self.optimizer.take_gradients()
        self.optimizer.clip(norm, most=self.job.config.train.max_grad_norm)
        return norm

    def apply(self) -> None:
        """The optimiser's step on the parts."""
        self.optimizer.step()
        self.optimizer.forget_gradients()

    def dtypes(self) -> dict[str, str]:
        """Those that really came out."""
        with self.autocast():
            return dtypes.parts(self.model, self.optimizer)

    def commit(self) -> None:
        """Save the last step that was completed: the adapter as one, and its whole moments."""
        began = time.monotonic()
        parts = {**self.parts(), "optimizer": Kept(self.optimizer.whole_state())}
        with as_one(self.model):
            self.saver.save(self.flow.progress(self.step), parts, random_state=self.random_state)
        self.meter.pause(time.monotonic() - began)

    def let_go(self) -> None:
        """Processes that train together cannot go back on their own: there is no other attempt."""


def in_step(micro_batches: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of this process, and as many idle ones as the process with the most has more."""
    most = int(max(collectives.all_of(len(micro_batches))))
    last = micro_batches[-1]
    idle = {**last, "labels": torch.full_like(last["labels"], IGNORED)}
    return micro_batches + [idle] * (most - len(micro_batches))
