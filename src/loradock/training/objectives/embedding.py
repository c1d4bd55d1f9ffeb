"""Contrastive training of an embedding model: every query of a step against every passage of it, on all ranks.

GradCache (Gao et al. 2021) without its approximations: each micro-batch of documents is embedded, the vectors of all
ranks come together, loss and gradients by the vectors are made in float32, and each micro-batch is run backward from
its vectors' gradients. `direct` keeps its activations meanwhile; `cached` runs it forward once more, with the same
dropout, but for the last one, whose activations go again before another's come. Neither the size of micro-batches nor
the number of ranks changes what is computed, and both give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from loradock.config.schema import RunConfig
from loradock.data.collate import MicroBatch
from loradock.data.steps import Evaluation
from loradock.errors import ModelError
from loradock.plan.knobs.held_passes import ALL
from loradock.training.objectives.base import Evaluated, Objective, Poll
from loradock.training.objectives.contrastive import Contrast, contrast
from loradock.training.objectives.pooling import padded
from loradock.training.passes import BatchInputs, MicroStep, Passes, StepInputs


class Embedding(Objective):
    """The contrastive loss alone."""

    parts = ("in_batch_accuracy",)

    def __init__(self, config: RunConfig) -> None:
        self.embedding = config.embedding

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The mean over the queries of all ranks."""
        return torch.stack(self.contrastive(backend, inputs.batches["pairs"], step=step, poll=poll, weight=1.0))

    def contrastive(
        self, backend: Passes, pairs: BatchInputs, *, step: int, poll: Poll, weight: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward and backward: the loss before its weight and the in-batch accuracy, float32, zeros but on rank 0."""
        weight = self.embedding.weight if weight is None else weight
        batches, places = pairs.micro_batches, pairs.places
        held = backend.job.plan.held_passes.value
        first_held = 0 if held == ALL else max(0, len(batches) - max(1, int(held)))
        embedded = []
        for index, batch in enumerate(batches):
            poll()
            at = MicroStep(step=step, index=index, count=len(batches))
            embedded.append(backend.embed(batch, at=at, keeps=index >= first_held))
        found = self.contrasted(backend, pairs, [each.vectors for each in embedded])
        for own, each in reversed(list(zip(places, embedded, strict=True))):  # what is kept goes first
            poll()
            each.backward(found.gradient[own.to(backend.device)] * weight)
        share = 1.0 if backend.job.rank == 0 else 0.0
        return found.loss * share, found.accuracy * share

    def contrasted(self, backend: Passes, pairs: BatchInputs, vectors: list[torch.Tensor]) -> Contrast:
        """The loss of a batch whose documents the ranks have embedded, each its own."""
        device = backend.device
        relations = {name: tensor.to(device) for name, tensor in pairs.relations.items()}
        whole = torch.zeros(pairs.documents, backend.hidden, device=device)
        for own, found in zip(pairs.places, vectors, strict=True):
            whole[own.to(device)] = found
        if torch.distributed.is_initialized():
            with backend.waiting():
                torch.distributed.all_reduce(whole)  # zeros elsewhere: each row is one rank's own
        if not bool(whole.norm(dim=1).all()):
            raise ModelError("a text was embedded as a vector of zeros, which has no direction", hint=ZERO_HINT)
        return contrast(whole, **relations, temperature=self.embedding.temperature)

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """The mean over the held-out queries, each against the passages of its batch, and how many are first."""
        sums = torch.zeros(3, dtype=torch.float64)
        for batch in evaluation.turns["pairs"]:
            pairs = BatchInputs.of(batch, [backend.tensors(each)[0] for each in batch.micro_batches])
            vectors = []
            for tensors in pairs.micro_batches:
                poll()
                vectors.append(backend.embed(tensors, at=None, keeps=False).vectors)
            found, count = self.contrasted(backend, pairs, vectors), pairs.samples
            sums += torch.tensor([float(found.loss) * count, float(found.accuracy) * count, count])
        loss, accuracy, count = sums.tolist()
        return Evaluated(loss=loss / max(1, count), metrics={"in_batch_accuracy": accuracy / max(1, count)})

    def prepare(self, model: Any) -> None:
        """Nothing: pooling stands outside of the model."""

    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Padded to the right: `input_ids`, `attention_mask` and float32 `pooling`, each [documents, longest]."""
        longest = -(-int(batch.lengths.max()) // pad_to_multiple) * pad_to_multiple
        shape = (len(batch.rows), longest)
        ids = torch.full(shape, pad_token_id, dtype=torch.long)
        mask, pooled = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        for row, (tokens, own) in enumerate(batch.samples()):
            ids[row, : len(tokens)] = torch.from_numpy(tokens.astype("int64"))
            mask[row, : len(tokens)] = 1
            pooled[row, : len(tokens)] = torch.from_numpy(own | self.embedding.pool_instruction)
        made = {"input_ids": ids, "attention_mask": mask, "pooling": padded(pooled, pooling=self.embedding.pooling)}
        return made, ids.numel()

    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, is_training: bool) -> torch.Tensor:
        """There is none of one micro-batch by itself."""
        raise NotImplementedError

    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A rank without documents makes no pass."""
        raise NotImplementedError


ZERO_HINT = "look at the base: loradock env-check; a model in float16 may underflow: --set model.compute_dtype=bfloat16"
