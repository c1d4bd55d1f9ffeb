"""GritLM's objective (Muennighoff et al. 2024): one model that embeds and generates, by both losses in each step."""

from __future__ import annotations

from typing import Any

import torch

from loradock.data.collate import MicroBatch
from loradock.data.steps import Evaluation
from loradock.training.objectives.base import Evaluated, Poll
from loradock.training.objectives.embedding import Embedding
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import Passes, StepInputs


class Gritlm(Supervised):
    """The contrastive loss and that of the generated tokens, each with its weight."""

    parts = ("embedding_loss", "generative_loss", "in_batch_accuracy")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The contrastive passes, then the generative ones."""
        train = self.config.train
        contrastive, accuracy = self.embedding.contrastive(backend, inputs.batches["pairs"], step=step, poll=poll)
        rows = inputs.batches["rows"]
        of_loss = rows.supervised_tokens if train.generative_loss == "token-mean" else rows.samples
        weight, own = train.generative_weight, self.config.embedding.weight
        generative = self.likelihood(backend, inputs, scale=weight / max(1, of_loss), step=step, poll=poll)[0]
        return torch.stack([own * contrastive + generative, contrastive, generative / weight, accuracy])

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """Both losses and their weighted sum, of what is held out."""
        train = self.config.train
        loss, metrics = 0.0, dict[str, float]()
        if "pairs" in evaluation.turns:
            embedded = self.embedding.evaluate(backend, evaluation, poll=poll)
            loss = self.config.embedding.weight * embedded.loss
            metrics = {"embedding_loss": embedded.loss, **embedded.metrics}
        if "rows" not in evaluation.turns:
            return Evaluated(loss=loss, metrics=metrics)
        rows = super().evaluate(backend, evaluation, poll=poll)
        metrics |= {"generative_loss": rows.loss, **rows.metrics}
        a_row = rows.supervised_tokens / evaluation.turns["rows"].samples
        of_rows = rows.loss * (1.0 if train.generative_loss == "token-mean" else a_row)
        return Evaluated(
            loss=loss + train.generative_weight * of_rows,
            metrics=metrics,
            losses=rows.losses,
            supervised_tokens=rows.supervised_tokens,
        )

    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Those of documents to embed, or of rows to answer from."""
        shape = {"pad_token_id": pad_token_id, "pad_to_multiple": pad_to_multiple}
        return self.embedding.tensors(batch, **shape) if batch.purpose == "embed" else super().tensors(batch, **shape)
