"""Where a fault is put into a run: a step, a micro-batch's loss, a gradient, and what a GPU would be full at.

A test hands in what is to happen there; `patch` puts it in: a monkeypatch's setattr, or the builtin one in a process
that ends with the fault. Other places need none of this: `Flow.after` (each step that ended),
`batches.StepItems.__getitem__` (what the loader makes) and `Saver.save`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from loradock.model.adapters import trainable
from loradock.training import loop
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.head import Head
from loradock.training.backends.fast.layer import Layer
from loradock.training.backends.peft.backend import PeftBackend
from loradock.training.loop import Loop
from loradock.training.passes import MicroStep, StepInputs

Patch = Callable[[Any, str, Any], None]
Make = Callable[[], Any]
OnStep = Callable[[Any, list[Any], Make], Any]
"""(loop, token ids of each micro-batch, what makes the step) -> what that gave."""
OnLoss = Callable[[torch.Tensor, int, bool], torch.Tensor]
"""(a micro-batch's loss, the step, whether it is trained on) -> the loss in its place."""
OnGradient = Callable[[torch.Tensor, int], torch.Tensor]
"""(gradient of one adapter weight, the step) -> the gradient in its place."""
OnPass = Callable[[str, int, int], None]
"""("forward", "backward" or "evaluation", rows, tokens): one pass is there and holds so much; may raise."""

CHOSEN = 3
"""The adapter weight that gradients are changed of."""


class Seams(Protocol):
    """The places of one backend."""

    name: str
    backend: type

    def step(self, made: OnStep, *, patch: Patch = setattr) -> None:
        """Around every optimiser step."""
        ...

    def loss(self, changed: OnLoss, *, patch: Patch = setattr) -> None:
        """After forward and backward of every micro-batch."""
        ...

    def gradient(self, changed: OnGradient, *, patch: Patch = setattr) -> None:
        """The gradient of the CHOSEN weight after each backward."""
        ...

    def passes(self, seen: OnPass, *, patch: Patch = setattr) -> None:
        """Where the allocator would find a GPU full."""
        ...


class LoopSeams(ABC):
    """What both backends share."""

    backend: type
    ids: Callable[[Any], Any]

    def step(self, made: OnStep, *, patch: Patch = setattr) -> None:
        real, ids_of = Loop.make_step, type(self).ids

        def make_step(loop: Loop, inputs: StepInputs) -> None:
            ids = [ids_of(batch).tolist() for batch in inputs.batches["rows"].micro_batches]
            made(loop, ids, lambda: real(loop, inputs))

        patch(Loop, "make_step", make_step)

    def loss(self, changed: OnLoss, *, patch: Patch = setattr) -> None:
        real, evaluate = self.backend.forward_backward, loop.evaluate

        def forward_backward(backend: Any, batch: Any, *, scale: float, at: MicroStep) -> torch.Tensor:
            return changed(real(backend, batch, scale=scale, at=at), at.step + 1, True)

        def evaluated(objective: Any, backend: Any, evaluation: Any, *, step: int, **more: Any) -> Any:
            loss_sum = backend.loss_sum
            backend.loss_sum = lambda batch: changed(loss_sum(batch), step, False)
            try:
                return evaluate(objective, backend, evaluation, step=step, **more)
            finally:
                del backend.loss_sum

        patch(self.backend, "forward_backward", forward_backward)
        patch(loop, "evaluate", evaluated)

    def gradient(self, changed: OnGradient, *, patch: Patch = setattr) -> None:
        real = self.backend.forward_backward

        def forward_backward(backend: Any, batch: Any, *, scale: float, at: MicroStep) -> torch.Tensor:
            loss = real(backend, batch, scale=scale, at=at)
            gradient = self.chosen(backend)
            gradient.copy_(changed(gradient, at.step + 1))
            return loss

        patch(self.backend, "forward_backward", forward_backward)

    @abstractmethod
    def chosen(self, backend: Any) -> torch.Tensor:
        """The gradient of the CHOSEN weight."""


class FastSeams(LoopSeams):
    """The fast backend's."""

    name = "fast"
    backend = FastBackend
    ids = staticmethod(lambda batch: batch.ids)

    def chosen(self, backend: FastBackend) -> torch.Tensor:
        weight, adapters = trainable(backend.job.model)[CHOSEN], backend.model.adapters
        return adapters.view(adapters.gradient, [weight], weight.shape)

    def passes(self, seen: OnPass, *, patch: Patch = setattr) -> None:
        """At the head, when all layers have run, and in the backward of the lowest layer, the last."""
        real_train, real_loss, real_backward = Head.loss_and_gradient, Head.loss, Layer.backward

        def loss_and_gradient(self: Head, x: torch.Tensor, batch: FlatBatch, **more: Any) -> Any:
            seen("forward", *size(batch))
            return real_train(self, x, batch, **more)

        def loss(self: Head, x: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
            seen("evaluation", *size(batch))
            return real_loss(self, x, batch)

        def backward(self: Layer, dz: torch.Tensor, kept: Any, batch: FlatBatch, **more: Any) -> torch.Tensor:
            if self.is_lowest:
                seen("backward", *size(batch))
            return real_backward(self, dz, kept, batch, **more)

        patch(Head, "loss_and_gradient", loss_and_gradient)
        patch(Head, "loss", loss)
        patch(Layer, "backward", backward)


class PeftSeams(LoopSeams):
    """The peft backend's."""

    name = "peft"
    backend = PeftBackend
    ids = staticmethod(lambda batch: batch["input_ids"])

    def chosen(self, backend: PeftBackend) -> torch.Tensor:
        gradient = backend.parameters[CHOSEN].grad
        assert gradient is not None
        return gradient

    def passes(self, seen: OnPass, *, patch: Patch = setattr) -> None:
        """In a feed-forward layer, by a hook of autograd on the way back."""
        real = LlamaMLP.forward

        def forward(self: LlamaMLP, x: torch.Tensor) -> torch.Tensor:
            rows, length = x.shape[:2]
            seen("forward" if self.training else "evaluation", rows, rows * length)
            out = real(self, x)
            if self.training and out.requires_grad:
                out.register_hook(lambda _: seen("backward", rows, rows * length))
            return out

        patch(LlamaMLP, "forward", forward)


SEAMS: dict[str, Seams] = {each.name: each for each in (FastSeams(), PeftSeams())}


def size(batch: FlatBatch) -> tuple[int, int]:
    """Documents and tokens of a flat batch."""
    return len(batch.documents.bounds) - 1, batch.tokens
