"""GritLM's objective (Muennighoff et al. 2024): one model that embeds and generates, by both losses in each step."""

from __future__ import annotations

from typing import Any

import torch

from loradock.data.collate import MicroBatch
from loradock.training.objectives.base import Evaluated, Poll
from loradock.training.objectives.embedding import Embedding
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import Passes


class Gritlm(Supervised):
    """The contrastive loss and that of the generated tokens, each with its weight."""

    parts = ("embedding_loss", "generative_loss", "in_batch_accuracy")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)

    def step(self, backend: Passes, inputs: dict[str, Any], *, step: int, poll: Poll) -> torch.Tensor:
        """The contrastive passes, then the generative ones."""
        train = self.config.train
        contrastive, accuracy = self.embedding.contrastive(backend, inputs["pairs"], step=step, poll=poll)
        of_loss = inputs["supervised_tokens"] if train.generative_loss == "token-mean" else inputs["rows"]
        weight, own = train.generative_weight, self.config.embedding.weight
        generative = self.likelihood(backend, inputs, scale=weight / max(1, of_loss), step=step, poll=poll)[0]
        return torch.stack([own * contrastive + generative, contrastive, generative / weight, accuracy])

    def evaluate(self, backend: Passes, evaluation: Any, *, poll: Poll) -> Evaluated:
        """Both losses and their weighted sum, of what is held out."""
        train = self.config.train
        embedded = self.embedding.evaluate(backend, evaluation, poll=poll)
        rows = super().evaluate(backend, evaluation.rows, poll=poll) if evaluation.rows is not None else None
        loss = self.config.embedding.weight * embedded.loss if evaluation.has_pairs else 0.0
        metrics = {"embedding_loss": embedded.loss, **embedded.metrics} if evaluation.has_pairs else {}
        if rows is None:
            return Evaluated(loss=loss, metrics=metrics)
        metrics |= {"generative_loss": rows.loss, **rows.metrics}
        a_row = rows.supervised_tokens / evaluation.row_count
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
        return self.embedding.tensors(batch, **shape) if batch.is_pooled else super().tensors(batch, **shape)
