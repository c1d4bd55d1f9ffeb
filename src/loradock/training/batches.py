"""What an engine is fed: optimiser steps as tensors, loaded ahead as the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loradock.catalog.samples import SampleKind
from loradock.data.collate import MicroBatch
from loradock.data.steps import Steps
from loradock.process import signals
from loradock.training.job import Job
from loradock.training.passes import BatchInputs, StepInputs

AsTensors = Callable[[MicroBatch], tuple[Any, int]]
"""A micro-batch -> the engine's tensors, and how many token slots they have, padding included."""


def step_loader(job: Job, as_tensors: AsTensors) -> StepLoader:
    """Optimiser steps in order from the one to resume at, one an item.

    Steps before it are not touched: resuming at a large step takes no longer than at a small one. The generator is its
    own, so that workers draw nothing from the run's.
    """
    loader = job.plan.dataloader.value
    first = job.resume.step if job.resume else 0
    items = StepItems(job.steps, as_tensors)
    return StepLoader(
        FirstAgain(items, first=first) if job.config.data.repeat_first else items,
        batch_size=1,
        sampler=range(first, len(job.steps)),
        worker_init_fn=begin_worker,
        collate_fn=only_item,
        num_workers=loader.workers,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        generator=torch.Generator().manual_seed(job.config.train.seed),
    )


class StepLoader(torch.utils.data.DataLoader[Any]):
    """A loader whose workers a signal to the process group does not reach, not even while they start.

    `close` ends them in order: those that Python ends when it exits are taken for a failure, and a traceback is shown.
    """

    running: Any = None

    def __iter__(self) -> Any:
        with signals.held():
            self.running = super().__iter__()
        return self.running

    def close(self) -> None:
        """End the workers; does nothing where there are none."""
        if self.num_workers and self.running is not None:
            self.running._shutdown_workers()


def begin_worker(_: int) -> None:
    """The first thing that a worker does."""
    signals.leave_group()


class StepItems(torch.utils.data.Dataset[StepInputs]):
    """Optimiser steps as tensors."""

    def __init__(self, steps: Steps, as_tensors: AsTensors) -> None:
        self.steps = steps
        self.as_tensors = as_tensors

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> StepInputs:
        step = self.steps[index]
        batches: dict[SampleKind, BatchInputs] = {}
        slots = idle = 0
        for kind, batch in step.batches.items():
            passes = [(micro_batch.is_idle, *self.as_tensors(micro_batch)) for micro_batch in batch.micro_batches]
            batches[kind] = BatchInputs.of(batch, [tensors for _, tensors, _ in passes])
            slots += sum(count for _, _, count in passes)
            idle += sum(count for is_idle, _, count in passes if is_idle)
        counts = {
            "tokens": step.tokens,
            "supervised_tokens": step.supervised_tokens,
            "samples": step.samples,
            "slots": slots,
            "idle": idle,
        }
        return StepInputs(batches, counts)


class FirstAgain(torch.utils.data.Dataset[StepInputs]):
    """Every step is the first one, which is loaded once (in each worker) and kept."""

    def __init__(self, items: StepItems, *, first: int) -> None:
        self.items = items
        self.first = first
        self.kept: StepInputs | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, _: int) -> StepInputs:
        if self.kept is None:
            self.kept = self.items[self.first]
        return self.kept


def only_item(items: list[Any]) -> Any:
    """The collator: one item is a whole optimiser step."""
    return items[0]
