"""The loop of the fast engine: gradients in one flat buffer, which the processes of a run sum up once a step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed

from loradock.model import dtypes
from loradock.model.adapters import trainable
from loradock.training.backends.fast import rehearsal
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.graphs import graphs_of
from loradock.training.backends.fast.inputs import filled_up, flat_inputs
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.checkpoint import state
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.job import Decided, Emit, Job
from loradock.training.loop import Loop
from loradock.training.saving import Saver

CLIP_EPSILON = 1e-6


class FastTrainer(Loop):
    """One attempt at a job by the fast engine."""

    def __init__(self, job: Job, emit: Emit, saver: Saver, *, model: FastModel) -> None:
        train = job.config.train
        self.model = model
        device = model.adapters.values.device
        super().__init__(
            job,
            emit,
            saver,
            device=device,
            optimizer=FlatAdamW(
                model.adapters, trainable(job.model), learning_rate=train.learning_rate, weight_decay=train.weight_decay
            ),
            as_tensors=partial(flat_inputs, **filled_up(job)),
            scaler=torch.amp.GradScaler(device.type) if model.dtype == torch.float16 else None,
        )
        has_dropout = any(group.dropout for layer in model.layers for group in layer.groups())
        self.dropout_seed = train.seed if has_dropout else None
        self.graphs = graphs_of(model, emit) if job.plan.cuda_graphs.value else None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the adapter and the state of a checkpoint."""
        state.restore_adapter(self.job.model, checkpoint)
        super().restore(checkpoint)
        self.model.adapters.refresh()

    def begin(self) -> None:
        """Keep the weights dense that have room, and see that the longest step fits the card."""
        self.model.keep_dense(self.job.plan.cached_layers.value)
        if self.device.type == "cuda":
            self.emit(Decided(decisions=(rehearsal.found(self.model, self.job, seed=self.seed(0)),)))

    def gradients(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Those of one step into the flat buffer; see `Loop.gradients`."""
        self.model.adapters.gradient.zero_()
        scale = 1 / max(1, inputs["supervised_tokens"])
        grown = self.scaler.scale(torch.ones((), device=self.device)).item() if self.scaler else 1.0
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(inputs["micro_batches"]):
            self.poll()
            total += self.loss_and_gradients(batch, scale=scale * grown, seed=self.seed(index))
        return total / grown

    def loss_and_gradients(self, batch: FlatBatch, *, scale: float, seed: int | None) -> torch.Tensor:
        """Of one micro-batch."""
        if self.graphs is not None:
            return self.graphs.loss_and_gradients(batch.to(self.device), scale=scale)
        return self.model.loss_and_gradients(batch.to(self.device), scale=scale, seed=seed)

    def sum_up(self) -> None:
        """Sum up the flat buffers of all processes."""
        if self.job.world_size > 1:
            torch.distributed.all_reduce(self.model.adapters.gradient)

    def clip(self) -> torch.Tensor:
        """The norm of the gradient, which is cut to the largest allowed."""
        gradient = self.model.adapters.gradient
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        norm = torch.linalg.vector_norm(gradient)
        most = self.job.config.train.max_grad_norm
        if most:
            gradient.mul_((most / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return norm

    def apply(self) -> None:
        """The optimiser's step, and a fresh working copy."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.model.adapters.refresh()

    def loss_sum(self, batch: FlatBatch) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""
        return self.model.loss(batch.to(self.device))

    def dtypes(self) -> dict[str, str]:
        """Those that really came out."""
        return dtypes.fast_parts(self.model, self.job.model, self.optimizer)

    def let_go(self) -> None:
        """Nothing was put into the model but its own weights, which stay where they are."""

    def seed(self, micro_batch: int) -> int | None:
        """Of the dropout masks of a micro-batch: by run, step, process and place, so that it resumes exactly."""
        if self.dropout_seed is None:
            return None
        words = np.random.SeedSequence([self.dropout_seed, self.step, self.job.rank, micro_batch])
        return int(words.generate_state(1, np.uint64)[0] >> np.uint64(2))
