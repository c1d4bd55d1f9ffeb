"""KTO: desirable answers become likelier, undesirable ones less likely, each measured against the mean divergence.

Notation of `preference_losses`: y an answer's summed log-probability under the trained model, y0 under the reference,
b is beta. z = max(0, mean of (m - m0) over the mismatched answers m of the step, all ranks), without gradient. The loss
of a desirable answer is d (1 - sigmoid(b ((y - y0) - z))), of an undesirable one u (1 - sigmoid(b (z - (y - y0)))), d
and u their weights (Ethayarajh et al. 2024, eq. 7 and 8).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed

from loradock.data.steps import Evaluation
from loradock.training.objectives.base import Evaluated, Poll, parts_by_name
from loradock.training.objectives.kept_reference import StepReference
from loradock.training.objectives.preference import PARTS, Preference
from loradock.training.passes import BatchInputs, MicroStep, Passes, StepInputs

KIND = "judgements"
SUMS = 6
"""How many numbers `Kto.judged` adds up."""


class Kto(Preference):
    """Reported are the parts of `Preference`, and the divergence z.

    Means are over the desirable answers of a step, or over the others; the margin is the difference of both rewards.
    What a step has no answer for is NaN, and so is z where it has no mismatched one (it is 0 in the loss then).
    Accuracy: how often y - y0 is on the side of z that the label says.
    """

    parts = (*PARTS, "divergence")

    def step(self, backend: Passes, inputs: StepInputs, *, step: int, poll: Poll) -> torch.Tensor:
        """The weighted mean over the answers of all ranks."""
        batch = inputs.batches[KIND]
        documents = batch.document_inputs
        count = sum(int(places[0]) >= batch.samples for _, places in documents)
        mismatched, answers = (
            backend.documents(part, spare=documents[-1], counts=inputs.counts)
            for part in (documents[:count], documents[count:])
        )
        excess = torch.zeros(2, dtype=torch.float64, device=backend.device)
        for tensors, places in mismatched:  # their prompts and answers come together in this epoch alone
            poll()
            excess += self.excess(backend, tensors, places, reference=self.reference(backend, tensors))
        with backend.waiting():
            divergence = mean_divergence(excess)
        sums = torch.zeros(SUMS, dtype=torch.float64, device=backend.device)
        of_step = StepReference(self.kept, batch.relations["trained"])
        for index, (tensors, places) in enumerate(answers):
            poll()
            reference = of_step.of(places, partial(self.reference, backend, tensors))
            at = MicroStep(step=step, index=index, count=len(answers))
            scored = backend.score(tensors, at=at, keeps=True)
            of_answers, gradient = self.judged(
                scored.log_probabilities, reference, divergence, labels=batch.relations["desirable"], places=places
            )
            scored.backward(gradient / max(1, batch.samples))
            sums += of_answers
        of_step.close(backend)
        good = int(batch.relations["desirable"].sum())
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        divergence = torch.where(excess[1] > 0, divergence / ranks, torch.nan)
        return reported(sums, good=good, bad=batch.samples - good, divergence=divergence).float()

    def excess(
        self, backend: Passes, tensors: Any, places: torch.Tensor, *, reference: torch.Tensor | None
    ) -> torch.Tensor:
        """Of mismatched answers, without dropout: float64 [2], the sum of m - m0, and their number (none if idle)."""
        with torch.no_grad():
            scores = backend.score(tensors, at=None, keeps=False).log_probabilities
        assert reference is not None
        is_real = (places >= 0).to(scores.device)
        excess = (scores.double() - reference.double())[: len(places)]
        return torch.stack([(excess * is_real).sum(), is_real.sum().double()])

    def judged(
        self,
        scores: torch.Tensor,
        reference: torch.Tensor | None,
        divergence: torch.Tensor,
        *,
        labels: torch.Tensor,
        places: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the answers of a micro-batch: float64 [SUMS], and the gradient of the summed loss by the scores, float32.

        The sums: loss, answers on the right side, and of desirable and undesirable ones each reward and
        log-probability. `labels`: bool, of all answers of the step.
        """
        assert reference is not None
        options, inputs = self.options, scores.detach().double().requires_grad_()
        places = places.to(scores.device)
        count = len(places)
        is_real = places >= 0  # a rank without work runs an answer along that is none of its own
        good = labels.to(scores.device)[places.clamp(min=0)] & is_real
        bad = ~good & is_real
        with torch.enable_grad():
            excess = inputs[:count] - reference[:count].double()
            distance = options.beta * (excess - divergence)
            desirable = options.desirable_weight * torch.sigmoid(-distance)
            undesirable = options.undesirable_weight * torch.sigmoid(distance)
            loss = (desirable * good + undesirable * bad).sum()
        (gradient,) = torch.autograd.grad(loss, inputs)
        rewards, own = options.beta * excess.detach(), inputs.detach()[:count]
        is_right = torch.where(good, distance > 0, distance < 0) & is_real
        columns = (is_right, rewards * good, rewards * bad, own * good, own * bad)
        return torch.stack([loss.detach(), *(column.double().sum() for column in columns)]), gradient.float()

    def evaluate(self, backend: Passes, evaluation: Evaluation, *, poll: Poll) -> Evaluated:
        """Over all held-out answers, of each set by name, too; the divergence is that of all held-out prompts."""
        turns = evaluation.turns[KIND]
        sums = torch.zeros(max(1, len(turns.names)), SUMS + 3, dtype=torch.float64, device=backend.device)
        excess = torch.zeros(2, dtype=torch.float64, device=backend.device)
        divergence: torch.Tensor | None = None
        for number, turn in enumerate(turns):
            poll()
            (micro_batch,) = turn.micro_batches
            batch = BatchInputs.of(turn, [backend.tensors(micro_batch)[0]])
            (tensors,), (places,) = batch.micro_batches, batch.places
            reference = self.held_out_reference(backend, tensors, turn=number)
            if not turn.relations:
                excess += self.excess(backend, tensors, places, reference=reference)
                continue
            divergence = mean_divergence(excess) if divergence is None else divergence
            labels = batch.relations["desirable"]
            with torch.no_grad():
                scores = backend.score(tensors, at=None, keeps=False).log_probabilities
            of_turn, _ = self.judged(scores, reference, divergence, labels=labels, places=places)
            real = places[places >= 0]
            counts = torch.stack([labels[real].sum(), (~labels[real]).sum(), batch.relations["learned"][real].sum()])
            sums[turn.set_index] += torch.cat([of_turn, counts.to(of_turn)])
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        divergence = torch.zeros_like(excess[0]) if divergence is None else divergence
        divergence = torch.where(excess[1] > 0, divergence, torch.nan)
        *values, good, bad, tokens = sums.sum(dim=0).tolist()
        loss, *parts = reported(
            torch.tensor(values, dtype=torch.float64), good=good, bad=bad, divergence=divergence
        ).tolist()
        of_sets = [(each[0] / (each[-3] + each[-2]), each[-3] + each[-2]) for each in sums.tolist()]
        return Evaluated(
            loss=loss,
            metrics=parts_by_name(self.parts, parts),
            losses={name: mean for name, (mean, count) in zip(turns.names, of_sets, strict=False) if count},
            supervised_tokens=int(tokens),
        )


def mean_divergence(excess: torch.Tensor) -> torch.Tensor:
    """The mean over all ranks, and never below 0, float64 []; 0 where no rank has one: float64 [2], sum and number."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(excess)
    return (excess[0] / excess[1].clamp(min=1)).clamp(min=0)


def reported(sums: torch.Tensor, *, good: float, bad: float, divergence: torch.Tensor) -> torch.Tensor:
    """The loss and the parts of so many answers, float64 [1 + parts], from their sums (`Kto.judged`).

    NaN is what there is no answer for.
    """
    loss, is_right, good_reward, bad_reward, good_score, bad_score = sums / max(1, good + bad)
    of_good, of_bad = ((good + bad) / count if count else math.nan for count in (good, bad))
    chosen, rejected = good_reward * of_good, bad_reward * of_bad
    parts = (is_right, chosen - rejected, chosen, rejected, good_score * of_good, bad_score * of_bad)
    return torch.stack([loss, *parts, divergence.to(loss)])
