"""What an objective is: the passes of a step, what a micro-batch holds, its loss, and what an evaluation reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from loradock.data.collate import MicroBatch
from loradock.data.steps import Evaluation
from loradock.training.passes import Passes, StepInputs

Poll = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What an evaluation found, over all ranks: see `events.EvalResult`."""

    loss: float
    metrics: dict[str, float]
    losses: dict[str, float] = field(default_factory=dict[str, float])
    supervised_tokens: int = 0


def parts_by_name(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """The values by name, but those that there was nothing to measure for (NaN)."""
    return {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}


class Objective(ABC):
    """What a run optimises.

    `parts` names what `step` returns besides the loss, which comes first. `stateful` is what a checkpoint keeps of it,
    by name (`checkpoint.state.Stateful`), from `begin` on. `prepare`, `tensors`, `loss_sum` and `idle`
    are for autograd backends (peft, fsdp, zero), and over the tensors that they compute with.
    """

    parts: tuple[str, ...] = ()
    stateful: Mapping[str, Any] = MappingProxyType({})

    def begin(self, backend: Passes) -> None:  # noqa: B027
        """An attempt at the backend's job begins, before a checkpoint is taken up."""

    @abstractmethod
    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """Forward and backward of an optimiser step; `step` is the last one completed, `poll` is called in each pass.

        Returns float32 [1 + parts] on the device: the loss and its parts, whose sums over all ranks are the step's;
        NaN on all ranks for a part of which the step has nothing.
        The gradients, whose sum over all ranks is the step's, are added to the backend's.
        """

    @abstractmethod
    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """Over the validation part, in evaluation mode, without gradients; ranks take the same turns."""

    @abstractmethod
    def prepare(self, model: Any) -> None:
        """Put into the PeftModel what the loss needs of its forward pass; called once, before it is sharded."""

    @abstractmethod
    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """The model's inputs for a micro-batch, and how many token slots they have, padding included."""

    @abstractmethod
    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, is_training: bool) -> torch.Tensor:
        """The summed loss of a micro-batch, float32, in nats.

        What is a mean over a step's micro-batches is added times its labelled tokens, by all of which the step divides;
        without `is_training`, in an evaluation, it is left out.
        """

    @abstractmethod
    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same inputs with no label: a pass that teaches nothing, for a rank that has fewer than the others."""
