"""The peft backend: autograd over the PEFT model, whole on every rank; gradients are all-reduced once a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from transformers.integrations import neftune

from loradock.distributed.stragglers import Pace
from loradock.model import optimizer
from loradock.model.adapters import trainable
from loradock.training.backends.autograd import (
    AutogradBackend,
    broadcast_adapter,
    checked_packing,
    checked_vectors,
    seed,
)
from loradock.training.backends.peft.compilation import CompiledLayers, Compiler
from loradock.training.events import Emit
from loradock.training.job import Job


class PeftBackend(AutogradBackend):
    """Trains what the fast backend does not: any architecture, DoRA, NEFTune, torch.compile, int8, other optimisers."""

    def __init__(self, job: Job, *, compiler: Compiler = "inductor") -> None:
        super().__init__(job)
        self.compiler = compiler
        self.compiled: CompiledLayers | None = None
        self.noise: Any = None

    def prepare(self) -> tuple[str, ...]:
        """That packed documents do not see one another, and that texts are embedded by the attention asked for."""
        packing = tuple(f"packing: {found.why}" for found in checked_packing(self.job, self.job.model))
        return (*packing, *filter(None, [checked_vectors(self.job)]))

    def begin(self, job: Job, pace: Pace, emit: Emit) -> None:
        """The adapter of rank 0, a new optimiser, and what the configuration puts into the model for an attempt."""
        self.job, self.pace, self.emit = job, pace, emit
        self.put_in()
        train, dtype = job.config.train, job.plan.compute_dtype.value
        self.device = next(job.model.parameters()).device
        broadcast_adapter(job)
        self.parameters = trainable(job.model)
        self.optimizer = optimizer.of_run(job.model, job.plan.optimizer.value, train)
        self.scaler = torch.amp.GradScaler(self.device.type) if dtype == "float16" else None
        if train.neftune_alpha:
            self.noise = neftune.activate_neftune(job.model, train.neftune_alpha)
        self.compiled = CompiledLayers(job.model, mode=job.plan.compile.value, emit=emit, backend=self.compiler)
        job.model.train()
        seed(job)

    def begin_step(self) -> None:
        """Gradients are none."""
        self.optimizer.zero_grad(set_to_none=True)

    def reduce_gradients(self) -> None:
        """One all-reduce of all gradients in a row."""
        if self.job.world_size == 1:
            return
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]
        values = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(values)
        parts = values.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def clip(self) -> torch.Tensor:
        """The norm of the gradient, which is cut to the largest allowed."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        most = self.job.config.train.max_grad_norm
        return torch.nn.utils.clip_grad_norm_(self.parameters, most or float("inf"))

    def update(self) -> None:
        """The optimiser's step; a step that overflowed in float16 is left out."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def report(self) -> None:
        """What the compiler did, where that is news."""
        if self.compiled:
            self.compiled.report()

    def end(self) -> None:
        """Eager layers, and embeddings without noise."""
        if self.compiled:
            self.compiled.release()
        if self.noise is not None:
            self.noise.remove()
            self.noise = None
