"""The start-up check of documents' vectors or scores: packed by the fast engine, and each alone by PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from loradock.data.collate import Array
from loradock.model import reward_head
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.batch import PooledBatch
from loradock.training.backends.fast.differences import Differences
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.self_check import ROWS, check, noisy
from loradock.training.job import Job, Unsound
from loradock.training.objectives.pooling import Pooling, flat, padded, pooled


class Vectors:
    """The squares of documents' vectors along one random direction each, summed.

    A score is a vector of one number, read from the last token of a document that sees what is before it.
    """

    def __init__(self, *, pooling: Pooling, is_causal: bool, hidden: int) -> None:
        self.pooling: Pooling = pooling
        self.is_causal = is_causal
        self.directions = torch.randn(ROWS, hidden, generator=torch.Generator().manual_seed(0))

    def computed(self, model: FastModel, rows: list[Array]) -> tuple[float, torch.Tensor]:
        """See `self_check.Kind`."""
        model.adapters.gradient.zero_()
        vectors, backward = model.vectors_kept(self.batch(model, rows))
        along, directions = self.along(vectors)
        backward(2 * along[:, None] * directions)
        return float(along.square().sum()), model.adapters.gradient.clone()

    def of_last(self, model: FastModel, rows: list[Array]) -> float:
        """See `self_check.Kind`."""
        along, _ = self.along(model.vectors(self.batch(model, rows)))
        return float(along[-1].square())

    def reference(self, model: Any, rows: list[Array], parameters: Sequence[Any]) -> tuple[float, torch.Tensor]:
        """See `self_check.Kind`."""
        device, was_training = parameters[0].device, model.training
        longest = max(map(len, rows))
        ids = torch.stack([torch.from_numpy(np.pad(row, (0, longest - len(row))).astype("int64")) for row in rows])
        mask = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
        made = {"input_ids": ids, "attention_mask": mask.long(), "pooling": padded(mask, pooling=self.pooling)}
        model.eval()
        try:
            vectors = pooled(model, {name: each.to(device) for name, each in made.items()}, is_causal=self.is_causal)
            along, _ = self.along(vectors if reward_head.of(model) is None else reward_head.rewards(model, vectors))
            number = along.square().sum()
            number.backward()
        finally:
            model.train(was_training)
        parts = [
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter) for parameter in parameters
        ]
        for each in parameters:
            each.grad = None
        return number.item(), torch.cat([part.float().flatten() for part in parts])

    def along(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each vector along its direction [documents], and the directions."""
        directions = self.directions[-len(vectors) :].to(vectors.device)
        return (vectors * directions).sum(dim=1), directions

    def batch(self, model: FastModel, rows: list[Array], *, pooling: Pooling | None = None) -> PooledBatch:
        """The rows end to end on the model's device, all of their tokens pooled."""
        lengths = [len(row) for row in rows]
        bounds = np.cumsum([0, *lengths]).astype(np.int32)
        made = PooledBatch(
            ids=torch.from_numpy(np.concatenate(rows).astype(np.int64)),
            positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)),
            documents=Documents(
                bounds=tuple(int(bound) for bound in bounds),
                cu_seqlens=torch.from_numpy(bounds),
                longest=max(lengths),
                is_causal=self.is_causal,
            ),
            pooling=flat(
                torch.ones(sum(lengths), dtype=torch.bool), torch.tensor(lengths), pooling=pooling or self.pooling
            ),
        )
        return made.to(model.adapters.values.device)


def check_vectors(model: FastModel, job: Job) -> Differences:
    """Compare vectors and their gradients on the first documents of the run; see `self_check.check`.

    Raises Unsound also where a token does not see what `embedding.attention` says.
    """
    rows = [ids for micro_batch in job.steps[0].embedded for ids, _ in micro_batch.samples() if len(ids) > 1][:ROWS]
    asked = job.config.embedding
    kind = Vectors(pooling=asked.pooling, is_causal=asked.attention == "causal", hidden=job.plan.model.hidden)
    found = check(model, job, kind, rows)
    with noisy(model):
        is_ahead = sees_ahead(model, kind, rows[-1], vocabulary=job.plan.model.vocabulary)
    if is_ahead == kind.is_causal:
        what = "its first token sees the last one" if is_ahead else "its first token does not see the last one"
        attention = job.config.embedding.attention
        raise Unsound(f"the fast engine embeds a text otherwise than {attention}: {what}", hint="--set engine=peft")
    return found


def check_scores(model: FastModel, job: Job) -> Differences:
    """Compare the scores of a reward model, the gradient of its head among the others'; see `self_check.check`."""
    return check(model, job, Vectors(pooling="lasttoken", is_causal=True, hidden=1))


def sees_ahead(model: FastModel, kind: Vectors, row: Array, *, vocabulary: int) -> bool:
    """Whether another last token moves the state of the first."""
    other = row.copy()
    other[-1] = (other[-1] + 1) % vocabulary
    first, moved = (model.vectors(kind.batch(model, [each], pooling="cls")) for each in (row, other))
    return not torch.equal(first, moved)
