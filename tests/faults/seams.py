"""Where a fault is put into each engine: a step, a micro-batch's loss, a gradient, and what a card would be full at.

A test hands in what is to happen there; `patch` puts it in: a monkeypatch's setattr, or the builtin one in a process
that ends with the fault. What both engines share has its own places: `Flow.after` (each step that ended),
`feed.StepItems.__getitem__` (what the loader makes) and `Saver.save`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from loradock.model.adapters import trainable
from loradock.training import loop
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.head import Head
from loradock.training.backends.fast.layer import Layer
from loradock.training.backends.fast.trainer import FastTrainer
from loradock.training.backends.peft import trainer as trl
from loradock.training.backends.peft.trainer import StepTrainer

Patch = Callable[[Any, str, Any], None]
Make = Callable[[], Any]
OnStep = Callable[[Any, list[Any], Make], Any]
"""(trainer, token ids of each micro-batch, what makes forward and backward) -> what that gave."""
OnLoss = Callable[[torch.Tensor, int, bool], torch.Tensor]
"""(a micro-batch's loss, the step, whether it is trained on) -> the loss in its place."""
OnGradient = Callable[[torch.Tensor, int], torch.Tensor]
"""(gradient of one adapter weight, the step) -> the gradient in its place."""
OnPass = Callable[[str, int, int], None]
"""("forward", "backward" or "evaluation", rows, tokens): one pass is there and holds so much; may raise."""

CHOSEN = 3
"""The adapter weight that gradients are changed of."""


class Seams(Protocol):
    """The places of one engine."""

    name: str
    trainer: type

    def step(self, made: OnStep, *, patch: Patch = setattr) -> None:
        """Around forward and backward of every optimiser step."""
        ...

    def loss(self, changed: OnLoss, *, patch: Patch = setattr) -> None:
        """After the loss of every micro-batch."""
        ...

    def gradient(self, changed: OnGradient, *, patch: Patch = setattr) -> None:
        """The gradient of the CHOSEN weight after each backward."""
        ...

    def passes(self, seen: OnPass, *, patch: Patch = setattr) -> None:
        """Where the allocator would find a card full."""
        ...


class FastSeams:
    """The fast engine's."""

    name = "fast"
    trainer = FastTrainer

    def step(self, made: OnStep, *, patch: Patch = setattr) -> None:
        real = FastTrainer.gradients

        def gradients(self: FastTrainer, inputs: dict[str, Any]) -> Any:
            ids = [batch.ids.tolist() for batch in inputs["micro_batches"]]
            return made(self, ids, lambda: real(self, inputs))

        patch(FastTrainer, "gradients", gradients)

    def loss(self, changed: OnLoss, *, patch: Patch = setattr) -> None:
        real = FastTrainer.loss_and_gradients

        def loss_and_gradients(self: FastTrainer, batch: FlatBatch, **more: Any) -> torch.Tensor:
            return changed(real(self, batch, **more), self.step + 1, True)

        patch(FastTrainer, "loss_and_gradients", loss_and_gradients)
        change_evaluation(loop, changed, patch=patch)

    def gradient(self, changed: OnGradient, *, patch: Patch = setattr) -> None:
        real = FastTrainer.loss_and_gradients

        def loss_and_gradients(self: FastTrainer, batch: FlatBatch, **more: Any) -> torch.Tensor:
            loss = real(self, batch, **more)
            weight, adapters = trainable(self.job.model)[CHOSEN], self.model.adapters
            gradient = adapters.view(adapters.gradient, [weight], weight.shape)
            gradient.copy_(changed(gradient, self.step + 1))
            return loss

        patch(FastTrainer, "loss_and_gradients", loss_and_gradients)

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
            if self.index == 0:
                seen("backward", *size(batch))
            return real_backward(self, dz, kept, batch, **more)

        patch(Head, "loss_and_gradient", loss_and_gradient)
        patch(Head, "loss", loss)
        patch(Layer, "backward", backward)


class TrlSeams:
    """The peft backend's."""

    name = "trl"
    trainer = StepTrainer

    def step(self, made: OnStep, *, patch: Patch = setattr) -> None:
        real = StepTrainer.training_step

        def training_step(self: StepTrainer, model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
            ids = [batch["input_ids"].tolist() for batch in inputs["micro_batches"]]
            return made(self, ids, lambda: real(self, model, inputs, *rest))

        patch(StepTrainer, "training_step", training_step)

    def loss(self, changed: OnLoss, *, patch: Patch = setattr) -> None:
        real = StepTrainer.loss_sum

        def loss_sum(self: StepTrainer, model: Any, tensors: Any, **more: Any) -> torch.Tensor:
            loss = real(self, model, tensors, **more)
            return changed(loss, self.step + 1, True) if model.training else loss

        patch(StepTrainer, "loss_sum", loss_sum)
        change_evaluation(trl, changed, patch=patch)

    def gradient(self, changed: OnGradient, *, patch: Patch = setattr) -> None:
        """By a hook of autograd."""
        real = StepTrainer.training_step

        def training_step(self: StepTrainer, *arguments: Any) -> Any:
            hook = trainable(self.model)[CHOSEN].register_hook(lambda gradient: changed(gradient, self.step + 1))
            try:
                return real(self, *arguments)
            finally:
                hook.remove()

        patch(StepTrainer, "training_step", training_step)

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


SEAMS: dict[str, Seams] = {each.name: each for each in (FastSeams(), TrlSeams())}


def change_evaluation(module: ModuleType, changed: OnLoss, *, patch: Patch) -> None:
    """Change the losses of the evaluation that the trainer's module holds."""
    real = module.evaluate

    def evaluate(model: Any, batches: Any, loss_sum: Any, *, step: int, poll: Any) -> Any:
        return real(model, batches, lambda batch: changed(loss_sum(batch), step, False), step=step, poll=poll)

    patch(module, "evaluate", evaluate)


def size(batch: FlatBatch) -> tuple[int, int]:
    """Documents and tokens of a flat batch."""
    return len(batch.documents.bounds) - 1, batch.tokens
