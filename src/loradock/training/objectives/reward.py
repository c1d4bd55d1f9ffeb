"""Reward models: the score of the chosen answer becomes larger than that of the rejected one (Bradley and Terry 1952).

A micro-batch has whole pairs, so that its loss is that of its scores alone: two numbers a pair, whose gradients are
made here and handed to the backend. Neither the size of micro-batches nor the number of ranks changes what is computed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch.nn.functional import softplus

from loradock.config.schema import RunConfig
from loradock.data.collate import MicroBatch
from loradock.data.steps import Evaluation
from loradock.model import reward_head
from loradock.training.objectives.base import Evaluated, Objective, Poll
from loradock.training.objectives.pooling import pooled
from loradock.training.passes import BatchInputs, MicroStep, Passes, StepInputs

KIND = "preferences"
PARTS = ("preference_accuracy", "reward_margin", "chosen_reward", "rejected_reward")
"""What is reported of each pair besides its loss, as means over the pairs; rewards are the scores themselves."""


class Reward(Objective):
    """-log sigmoid(s - t - m) of the scores s and t of the chosen and the rejected answer, + `center` (s + t)^2.

    m is the margin of the pair's row, 0 where it has none (Touvron et al. 2023, section 3.2.2).
    """

    parts = PARTS

    def __init__(self, config: RunConfig) -> None:
        self.center = config.reward.center

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The mean over the pairs of all ranks."""
        batch = inputs.batches[KIND]
        documents = batch.document_inputs
        micro_batches = backend.documents(documents, spare=documents[-1], counts=inputs.counts)
        sums = torch.zeros(1 + len(PARTS), dtype=torch.float64, device=backend.device)
        for index, (tensors, places) in enumerate(micro_batches):
            poll()
            at = MicroStep(step=step, index=index, count=len(micro_batches))
            scored = backend.embed(tensors, at=at, keeps=True)
            of_pairs, gradient = self.measured(scored.vectors, places, batch.relations["margins"])
            scored.backward(gradient / max(1, batch.samples))
            sums += of_pairs
        return (sums / max(1, batch.samples)).float()

    def measured(
        self, scores: torch.Tensor, places: torch.Tensor, margins: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of scores [documents, 1]: sums over the pairs, float64 [loss, parts], and the gradient of their loss.

        `margins` [pairs] are those of the whole batch.
        """
        places = places.to(scores.device)[0::2]
        is_real = places >= 0  # a rank without work runs a pair along that is none of its own
        chosen, rejected = scores[0::2, 0].double(), scores[1::2, 0].double()
        margin = margins.to(scores.device)[places.clamp(min=0) // 2].double()
        loss = softplus(rejected - chosen + margin) + self.center * (chosen + rejected).square()
        columns = (loss, (chosen > rejected).double(), chosen - rejected, chosen, rejected)
        pull, push = torch.sigmoid(rejected - chosen + margin), 2 * self.center * (chosen + rejected)
        gradient = torch.stack([(push - pull) * is_real, (push + pull) * is_real], dim=1)
        return torch.stack([(column * is_real).sum() for column in columns]), gradient.reshape(-1, 1).float()

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """The mean over the held-out pairs, of each set by name, too."""
        turns = evaluation.turns[KIND]
        sums = torch.zeros(max(1, len(turns.names)), 2 + len(PARTS), dtype=torch.float64, device=backend.device)
        for turn in turns:
            poll()
            (micro_batch,) = turn.micro_batches
            batch = BatchInputs.of(turn, [backend.tensors(micro_batch)[0]])
            (tensors,), (places,) = batch.micro_batches, batch.places
            scores = backend.embed(tensors, at=None, keeps=False).vectors
            of_pairs, _ = self.measured(scores, places, batch.relations["margins"])
            sums[turn.set_index, :-1] += of_pairs
            sums[turn.set_index, -1] += float((places >= 0).sum()) / 2
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        *values, pairs = sums.sum(dim=0).tolist()
        loss, *parts = (value / max(1.0, pairs) for value in values)
        return Evaluated(
            loss=loss,
            metrics=dict(zip(PARTS, parts, strict=True)),
            losses={
                name: each[0] / each[-1] for name, each in zip(turns.names, sums.tolist(), strict=False) if each[-1]
            },
        )

    def prepare(self, model: Any) -> None:
        """A forward that gives scores where `pooling` is given: it is where a model that is cut gathers its parts."""
        whole = model.get_base_model()
        plain = whole.forward

        def forward(*, pooling: torch.Tensor | None = None, **inputs: Any) -> Any:
            if pooling is None:
                return plain(**inputs)
            return reward_head.rewards(whole, pooled(whole, {**inputs, "pooling": pooling}, is_causal=True))

        whole.forward = forward

    def tensors(
        self, batch: MicroBatch, *, pad_token_id: int, pad_to_multiple: int
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Padded to the right: `input_ids`, `attention_mask` and one-hot float32 `pooling`, each [documents, longest].

        The score is read where transformers reads it: from the last token that is not the padding's.
        """
        longest = -(-int(batch.lengths.max()) // pad_to_multiple) * pad_to_multiple
        ids = torch.full((len(batch.rows), longest), pad_token_id, dtype=torch.long)
        mask, pooling = torch.zeros_like(ids), torch.zeros(ids.shape)
        for row, (tokens, _) in enumerate(batch.samples()):
            ids[row, : len(tokens)] = torch.from_numpy(tokens.astype("int64"))
            mask[row, : len(tokens)] = 1
            pooling[row, reward_head.last_place(tokens, pad_token_id=pad_token_id)] = 1
        return {"input_ids": ids, "attention_mask": mask, "pooling": pooling}, ids.numel()

    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, is_training: bool) -> torch.Tensor:
        """There is none of one answer by itself."""
        raise NotImplementedError

    def idle(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A rank without pairs makes no pass."""
        raise NotImplementedError
