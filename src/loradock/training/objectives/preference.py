"""Preference tuning: of two answers of a prompt the chosen one becomes likelier, held against the model as it was.

A micro-batch has whole pairs, so that its loss is that of its log-probabilities alone: two numbers a pair, whose
gradients are made here by autograd and handed to the backend. Neither the size of micro-batches nor the number of ranks
changes what is computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed

from loradock.catalog.objectives import preference as catalog
from loradock.config.schema import RunConfig
from loradock.data.steps import Evaluation
from loradock.plan.knobs.reference import KEPT
from loradock.training.objectives.base import Evaluated, Poll
from loradock.training.objectives.kept_reference import PART, KeptReference, StepReference, key_of
from loradock.training.objectives.preference_losses import Answers, loss_of
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import BatchInputs, MicroStep, Passes, StepInputs

KIND = "preferences"
PARTS = (
    "preference_accuracy",
    "reward_margin",
    "chosen_reward",
    "rejected_reward",
    "chosen_log_probability",
    "rejected_log_probability",
)
"""What is reported of each pair besides its loss, as means over the pairs.

Rewards are b (c - c0) and b (r - r0); without a reference b times what the loss compares, which is a mean over tokens
for orpo and simpo. Accuracy: how often the chosen answer has the larger one. Log-probabilities are sums over an answer.
"""


class Preference(Supervised):
    """Inputs and head of `Supervised`; the loss is one of `preference_losses`."""

    parts = PARTS

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.options = config.preference
        self.has_reference = any(catalog.LOSSES[name].has_reference for name in self.options.losses)
        self.kept: KeptReference | None = None
        self.held_out: dict[int, torch.Tensor] = {}

    def begin(self, backend: Passes) -> None:
        """Nothing is known of the reference yet: an attempt with less memory computes it in other micro-batches."""
        self.held_out.clear()
        job = backend.job
        if job.plan.reference.value == KEPT:
            key = key_of(job.checkpoints.fingerprint)
            self.kept = KeptReference(job.plan.data.train_rows, key=key, device=backend.device)
            self.stateful = {PART: self.kept}

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The mean over the pairs of all ranks, and of the chosen answers' tokens where their likelihood counts."""
        batch = inputs.batches[KIND]
        documents = batch.document_inputs
        micro_batches = backend.documents(documents, spare=documents[-1], counts=inputs.counts)
        sums = torch.zeros(1 + len(PARTS), dtype=torch.float64, device=backend.device)
        of_step = StepReference(self.kept, batch.relations["trained"])
        for index, (tensors, places) in enumerate(micro_batches):
            poll()
            reference = of_step.of(places, partial(self.reference, backend, tensors))
            at = MicroStep(step=step, index=index, count=len(micro_batches))
            scored = backend.score(tensors, at=at, keeps=True)
            pair_sums, gradient = self.measured(scored.log_probabilities, reference, batch=batch, places=places)
            scored.backward(gradient)
            sums += pair_sums
        of_step.close(backend)
        return self.means(sums, pairs=batch.samples, tokens=chosen_tokens(batch)).float()

    def reference(self, backend: Passes, tensors: Any) -> torch.Tensor | None:
        """The log-probabilities without the adapter, without dropout; None where the loss needs none."""
        if not self.has_reference:
            return None
        with backend.reference_model(), torch.no_grad():
            return backend.score(tensors, at=None, keeps=False).log_probabilities

    def held_out_reference(self, backend: Passes, tensors: Any, *, turn: int) -> torch.Tensor | None:
        """The same of a turn of the evaluation, which is the same in each: computed once, unless that is not wanted."""
        if turn in self.held_out:
            return self.held_out[turn]
        values = self.reference(backend, tensors)
        if values is not None and self.options.keep_reference:
            self.held_out[turn] = values.clone()
        return values

    def measured(
        self, scores: torch.Tensor, reference: torch.Tensor | None, *, batch: BatchInputs, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums over the pairs of a micro-batch, float64 [loss without likelihood, parts], and the gradient.

        The gradient, float32 as the scores, is that of the loss of the whole step by these scores.
        """
        inputs = scores.detach().double().requires_grad_()
        places = places.to(scores.device)
        is_real = (places >= 0)[0::2]  # a rank without work runs a pair along that is none of its own
        lengths = batch.relations["learned"].to(scores.device)[places.clamp(min=0)].double().clamp(min=1)
        held_against = torch.zeros_like(inputs) if reference is None else reference.double()
        count = len(places)
        with torch.enable_grad():
            answers = Answers(
                chosen=inputs[0:count:2],
                rejected=inputs[1:count:2],
                reference_chosen=held_against[0:count:2],
                reference_rejected=held_against[1:count:2],
                chosen_lengths=lengths[0::2],
                rejected_lengths=lengths[1::2],
            )
            columns = [loss_of(answers, self.options), *self.reported(answers)]
            sums = torch.stack([(column * is_real).sum() for column in columns])
            loss = self.means(sums, pairs=batch.samples, tokens=chosen_tokens(batch))[0]
        (gradient,) = torch.autograd.grad(loss, inputs)
        return sums.detach(), gradient.float()

    def means(self, sums: torch.Tensor, *, pairs: float, tokens: float) -> torch.Tensor:
        """The loss and the parts of so many pairs, whose chosen answers have so many tokens, from their sums."""
        per_pair = sums / max(1.0, pairs)
        likelihood = -sums[1 + PARTS.index("chosen_log_probability")] / max(1.0, tokens)
        return torch.cat([per_pair[:1] + self.options.weight_of_likelihood * likelihood, per_pair[1:]])

    def reported(self, answers: Answers) -> list[torch.Tensor]:
        """The parts of each pair, [pairs] each, in their order."""
        compared = answers.means if self.options.loss in ("orpo", "simpo") else answers.ratios
        chosen, rejected = (self.options.beta * values for values in compared)
        is_right = (chosen > rejected).double()
        return [is_right, chosen - rejected, chosen, rejected, answers.chosen, answers.rejected]

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """The mean over the held-out pairs, of each set by name, too."""
        turns = evaluation.turns[KIND]
        names = turns.names
        sums = torch.zeros(max(1, len(names)), 1 + len(PARTS), dtype=torch.float64, device=backend.device)
        counts = torch.zeros(max(1, len(names)), 3, dtype=torch.float64, device=backend.device)
        for number, turn in enumerate(turns):
            poll()
            (micro_batch,) = turn.micro_batches
            batch = BatchInputs.of(turn, [backend.tensors(micro_batch)[0]])
            (tensors,), (places,) = batch.micro_batches, batch.places
            reference = self.held_out_reference(backend, tensors, turn=number)
            scores = backend.score(tensors, at=None, keeps=False).log_probabilities
            pair_sums, _ = self.measured(scores, reference, batch=batch, places=places)
            sums[turn.set_index] += pair_sums
            places = places[places >= 0]
            learned = batch.relations["learned"]
            of_turn = [len(places) / 2, float(learned[places[0::2]].sum()), float(learned[places].sum())]
            counts[turn.set_index] += torch.tensor(of_turn, dtype=torch.float64, device=backend.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
            torch.distributed.all_reduce(counts)
        of_sets = [
            (pairs, float(self.means(each, pairs=pairs, tokens=tokens)[0]))
            for each, (pairs, tokens, _) in zip(sums, counts.tolist(), strict=True)
        ]
        means = self.means(sums.sum(dim=0), pairs=float(counts[:, 0].sum()), tokens=float(counts[:, 1].sum())).tolist()
        return Evaluated(
            loss=means[0],
            metrics=dict(zip(PARTS, means[1:], strict=True)),
            losses={name: loss for name, (pairs, loss) in zip(names, of_sets, strict=False) if pairs},
            supervised_tokens=int(counts[:, 2].sum()),
        )


def chosen_tokens(batch: BatchInputs) -> float:
    """Learned tokens of the chosen answers of a step, over all ranks."""
    return float(batch.relations["learned"][0::2].sum())
