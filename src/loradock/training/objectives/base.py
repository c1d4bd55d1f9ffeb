"""What an objective is: what a micro-batch holds, what its loss is, and what an evaluation reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from loradock.data.collate import MicroBatch


class Objective(ABC):
    """What a run optimises, over the tensors that autograd backends (peft, fsdp, zero) compute with.

    A step's loss is the sum over its micro-batches, divided by `MicroBatch.supervised_tokens` of the whole step.
    """

    @abstractmethod
    def prepare(self, model: Any) -> None:
        """Put into the PeftModel what the loss needs of its forward pass; called once, before it is sharded."""

    @abstractmethod
    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """The model's inputs for a micro-batch, and how many token slots they have, padding included."""

    @abstractmethod
    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, share: float) -> torch.Tensor:
        """The summed loss of a micro-batch, float32, in nats.

        `share` is 1 over the number of micro-batches of the step, for what is a mean over them; 0 in an evaluation.
        """

    @abstractmethod
    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same inputs with no label: a pass that teaches nothing, for a rank that has fewer than the others."""

    @abstractmethod
    def metrics(self, loss: float) -> dict[str, float]:
        """What an evaluation reports besides its mean loss."""
