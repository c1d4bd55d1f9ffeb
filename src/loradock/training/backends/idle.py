"""Passes that a rank makes for the others' sake, where all ranks meet in each: as many on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loradock.catalog.samples import SampleKind
from loradock.data.collate import IDLE
from loradock.distributed import collectives
from loradock.training.objectives.base import Objective
from loradock.training.passes import DocumentInputs, StepInputs


def as_many_everywhere(inputs: StepInputs, kind: SampleKind, objective: Objective) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of this rank, and idle ones up to the number of the rank with the most: all meet in a pass."""
    own = inputs.batches[kind].micro_batches
    return [*own, *[objective.idle(own[-1])] * idle_passes(len(own), own[-1], inputs.counts)]


def documents_everywhere(
    micro_batches: Sequence[DocumentInputs], spare: DocumentInputs, counts: dict[str, int]
) -> list[DocumentInputs]:
    """The same of documents to score: a spare micro-batch is none of the step's, which its places say."""
    idle = spare._replace(places=torch.full_like(spare.places, IDLE))
    return [*micro_batches, *[idle] * idle_passes(len(micro_batches), spare.tensors, counts)]


def idle_passes(count: int, tensors: dict[str, torch.Tensor], counts: dict[str, int]) -> int:
    """By how many passes the rank with the most has more than the `count` of this one; their slots are counted."""
    missing = int(max(collectives.all_of(count))) - count
    slots = missing * tensors["input_ids"].numel()
    counts["slots"] += slots
    counts["idle"] += slots
    return missing
