"""The start-up check on the real model: documents do not see one another, and loss and gradient are PEFT's.

In float32 both give the same numbers, so that there a scale is seen that is off by one per cent in one layer. In a
dtype of 16 bits rounding alone moves the gradient of a real model by a tenth, PEFT's as much as ours: there ours may be
as far from that of float32 as PEFT's own, and a little more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from loradock.data.collate import Array
from loradock.training import guards
from loradock.training.backends.fast import reference
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.differences import DENSE, ROUTED, Differences, Distance
from loradock.training.backends.fast.model import FastModel
from loradock.training.job import Job, Unsound

ROWS = 4
LONGEST = 64
NOISE = 0.01
"""Of what is added to the adapters for the comparison, standard deviation."""
KINDS = ("lora_A", "lora_B")
SMALLEST_NORM = 1e-30
"""Of a gradient that is zero throughout, as on a base whose weights are."""
LEAST_NORM = 1e-4
"""Of one adapter matrix's gradient, as a share of the whole: one that is smaller counts as this large."""


class Kind(Protocol):
    """What is compared: a number and its gradient, of rows packed by the fast engine and of each alone by PEFT."""

    def computed(self, model: FastModel, rows: list[Array]) -> tuple[float, torch.Tensor]:
        """The number and its flat gradient by the fast engine, all rows in one batch."""
        ...

    def of_last(self, model: FastModel, rows: list[Array]) -> float:
        """The last row's part of it, packed behind the others."""
        ...

    def reference(self, model: Any, rows: list[Array], parameters: Sequence[Any]) -> tuple[float, torch.Tensor]:
        """The same by the PeftModel, each row alone."""
        ...


class Likelihood:
    """The summed negative log-likelihood, every token learned that follows another.

    `balancing`: the coefficient of a mixture's balancing loss, which comes to it.
    """

    def __init__(self, *, balancing: float = 0.0) -> None:
        self.balancing = balancing

    def computed(self, model: FastModel, rows: list[Array]) -> tuple[float, torch.Tensor]:
        """See `Kind`."""
        model.adapters.gradient.zero_()
        loss = float(model.loss_and_gradients(learned(model, rows), scale=1.0))
        return loss, model.adapters.gradient.clone()

    def of_last(self, model: FastModel, rows: list[Array]) -> float:
        """See `Kind`."""
        batch = learned(model, rows)
        batch.weights[batch.rows < sum(len(row) for row in rows[:-1])] = 0.0
        return float(model.loss(batch))

    def reference(self, model: Any, rows: list[Array], parameters: Sequence[Any]) -> tuple[float, torch.Tensor]:
        """See `Kind`."""
        return reference.loss_and_gradient(model, rows, parameters, balancing=self.balancing)


def check(model: FastModel, job: Job, kind: Kind | None = None, rows: list[Array] | None = None) -> Differences:
    """Compare on the first rows of the run, cut to 64 tokens, every token of them learned, without dropout.

    With them on a row of new tokens, where the run adds some: its first rows may hold none.

    LoRA begins with B at zero, where A gets no gradient and adds nothing: small values stand in the adapters meanwhile.
    The run's own random state is not drawn from. Raises Unsound where a difference is larger than the compute dtype
    explains, or a gradient is not finite; Diverged where PEFT's own loss is not finite.
    """
    rows = [ids[:LONGEST] for ids in (*new_tokens(model), *(first_rows(job) if rows is None else rows))]
    with noisy(model):
        found = compared(model, job, rows, kind or Likelihood(balancing=model.balance.coefficient))
    if not found.is_sound:
        raise Unsound(f"the fast engine does not compute what PEFT computes: {found}", hint="--set engine=peft")
    return found


@contextmanager
def noisy(model: FastModel) -> Iterator[None]:
    """Inside, small values are added to the adapters; what they give no gradient to has none left from before."""
    adapters = model.adapters
    values = adapters.values.clone()
    generator = torch.Generator(values.device).manual_seed(0)
    try:
        adapters.values.add_(torch.randn(values.shape, generator=generator, device=values.device), alpha=NOISE)
        adapters.refresh()
        adapters.fresh.zero_()
        yield
    finally:
        adapters.gradient.zero_()
        adapters.values.copy_(values)
        adapters.refresh()


def first_rows(job: Job) -> list[Array]:
    """Token ids of the first rows that this process sees, of two tokens at least: up to ROWS of them."""
    found: list[Array] = []
    for index in range(min(ROWS, len(job.steps))):
        for batch in job.steps[index].labelled:
            found += [ids for ids, _ in batch.samples() if len(ids) > 1]
        if len(found) >= ROWS:
            break
    return found[:ROWS]


def new_tokens(model: FastModel) -> list[Array]:
    """The ids of the tokens whose rows are trained, as one row of two tokens at least; none without them."""
    ids = [] if model.embedding_rows is None else model.embedding_rows.ids.tolist()
    return [np.array((ids * 2)[: max(2, len(ids))])] if ids else []


def compared(model: FastModel, job: Job, rows: list[Array], kind: Kind) -> Differences:
    """The rows packed, by the fast engine, against each alone by PEFT."""
    parameters = model.adapters.parameters
    limits = ROUTED if model.has_experts else DENSE
    with model.in_float32() if model.has_experts else nullcontext():  # an expert's tokens share sums, others' too
        leak = moved(model, rows, kind, vocabulary=job.plan.model.vocabulary)
    with reference.choices(job.model) as choices:
        pefts = kind.reference(job.model, rows, parameters)
    if not math.isfinite(pefts[0]):
        raise guards.diverged((job.resume.step if job.resume else 0) + 1, f"the loss of its first rows is {pefts[0]}")
    if model.dtype == torch.float32:
        ours, rerouted = as_chosen(model, rows, kind, choices)
        return Differences(leak=leak, exact=distance(model, job, ours, pefts), limits=limits, rerouted=rerouted)
    with reference.in_float32(job.model), reference.choices(job.model) as choices:
        truth = kind.reference(job.model, rows, parameters)
    ours, rounded_rerouted = as_chosen(model, rows, kind, choices)
    with model.in_float32():
        computed, rerouted = as_chosen(model, rows, kind, choices)
    exact, rounded, own = (distance(model, job, each, truth) for each in (computed, ours, pefts))
    return Differences(
        leak=leak,
        exact=exact,
        limits=limits,
        rerouted=rerouted,
        rounded=rounded,
        rounded_rerouted=rounded_rerouted,
        pefts=own,
    )


def as_chosen(
    model: FastModel, rows: list[Array], kind: Kind, choices: list[torch.Tensor]
) -> tuple[tuple[float, torch.Tensor], float]:
    """What the fast engine computes with the experts that PEFT chose, and the share that its own routers would not.

    `choices`: of each layer with experts, over the rows padded to the longest.
    """
    longest = max(map(len, rows))
    real = torch.cat([torch.arange(longest) < len(row) for row in rows])
    with model.balance.choosing([each[real.to(each.device)] for each in choices]) as rerouted:
        computed = kind.computed(model, rows)
    return computed, max(rerouted, default=0.0)


def moved(model: FastModel, rows: list[Array], kind: Kind, *, vocabulary: int) -> float:
    """How far the loss of the last row moves when all tokens of the others change, as a share of it.

    The shapes are the same, so the last row's numbers are, bit for bit, where nothing of the others is seen.
    """
    *others, last = rows
    changed = [(row + 1) % vocabulary for row in others]
    losses = [kind.of_last(model, [*packed, last]) for packed in (others, changed)]
    return relative(losses[1] - losses[0], losses[0])


def distance(
    model: FastModel, job: Job, found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]
) -> Distance:
    """From the expected loss and flat gradient."""
    adapters, whole = model.adapters, expected[1]
    difference = found[1] - whole
    kinds = kinds_of_weights(model, job)
    least = LEAST_NORM * float(whole.norm())
    return Distance(
        loss=relative(found[0] - expected[0], expected[0]),
        gradient=largest(relative(float(difference[part].norm()), float(whole[part].norm())) for part in kinds),
        adapter=largest(
            float(adapters.view(difference, [each], each.shape).norm())
            / max(float(adapters.view(whole, [each], each.shape).norm()), least, SMALLEST_NORM)
            for each in adapters.parameters
        ),
    )


def largest(values: Iterable[float]) -> float:
    """The largest, or not a number where one is none."""
    return float(np.max(list(values)))


def kinds_of_weights(model: FastModel, job: Job) -> list[torch.Tensor]:
    """Where A, B and rows of new tokens lie in the flat buffer: their gradients are of different size."""
    names = {id(parameter): name for name, parameter in job.model.named_parameters()}
    kind_of = {id(each): next((k for k in KINDS if k in names[id(each)]), "") for each in model.adapters.parameters}
    return [
        torch.cat(
            [
                torch.full((each.numel(),), kind_of[id(each)] == kind, device=model.adapters.values.device)
                for each in model.adapters.parameters
            ]
        )
        for kind in sorted(set(kind_of.values()))
    ]


def relative(difference: float, whole: float) -> float:
    """The difference as a share of the whole."""
    return abs(difference) / max(abs(whole), 1e-6)


def learned(model: FastModel, rows: list[Array]) -> FlatBatch:
    """The rows end to end on the model's device, every token learned that follows another."""
    bounds = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    spans = list(pairwise(bounds))
    places = torch.from_numpy(np.concatenate([np.arange(start, end - 1) for start, end in spans]).astype(np.int64))
    batch = FlatBatch(
        ids=ids,
        positions=torch.from_numpy(np.concatenate([np.arange(end - start) for start, end in spans]).astype(np.int32)),
        documents=Documents(
            bounds=tuple(int(bound) for bound in bounds),
            cu_seqlens=torch.from_numpy(bounds),
            longest=max(len(row) for row in rows),
        ),
        rows=places,
        slots=places,
        targets=ids[places + 1],
        weights=torch.ones(len(places)),
    )
    return batch.to(model.adapters.values.device)
