"""Planted bottlenecks: what is slowed down or set badly, and the name by which a diagnosis has to call it."""

from __future__ import annotations

from dataclasses import dataclass

LATE = """
import time
def slow(owner, name, seconds, when=lambda *_: True):
    real = getattr(owner, name)
    def late(*arguments, **more):
        if when(*arguments):
            time.sleep(seconds)
        return real(*arguments, **more)
    setattr(owner, name, late)
"""
"""Python that a plant begins with; it runs in the process that diagnoses, so that every trial inherits it."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """`code` slows something down, `settings` are the configuration's, `rows` the data to train on."""

    name: str
    code: str = ""
    settings: tuple[str, ...] = ()
    rows: str = "short"
    remedy: str | None = None
    steps: int = 4


PLANTS = (
    Plant(
        name="data",
        code="from loradock.data.steps import Steps; slow(Steps, '__getitem__', 0.08)",
        remedy="train.workers=",
    ),
    Plant(
        name="optimizer",
        code="from loradock.training.backends.fast.optimizer import FlatAdamW; slow(FlatAdamW, 'step', 0.08)",
    ),
    Plant(
        name="logging",
        code="from loradock.training.run_dir.record import RunRecord\n"
        "slow(RunRecord, 'metric', 0.08, lambda _, kind, *__: kind != 'eval')",
        settings=("logging.every=1",),
        remedy="logging.every=10",
    ),
    Plant(
        name="saving",
        code="from loradock.training.checkpoint import state; slow(state, 'of_run', 0.08)",
        settings=("checkpoints.every=1",),
        remedy="checkpoints.every=10",
    ),
    Plant(
        name="evaluation",
        settings=("evaluation.every=1", "data.validation=300"),
        rows="many",
        remedy="evaluation.every=10",
    ),
    Plant(
        name="padding",
        code="import torch._dynamo; torch._dynamo.config.disable = True",  # compiling takes 10 s a run
        settings=("engine=peft", "train.packing=false", "train.micro_batch=8"),
        rows="unequal",
        steps=6,
    ),
    Plant(name="micro-batch", settings=("train.micro_batch=1", "train.global_batch=16", "data.max_length=32"), steps=6),
)

HEALTHY = Plant(name="healthy", steps=6)
