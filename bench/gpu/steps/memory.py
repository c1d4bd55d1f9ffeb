"""Memory against the plan, at shapes of 1B and 7B: planned, reserved, measured as the largest pass, committed."""

from __future__ import annotations

from typing import Any

from bench.gpu.steps.base import Session, Step
from bench.gpu.steps.trainings import train

GIB = 2**30
STEPS_OF_A_RUN = 10


def small(session: Session) -> dict[str, Any]:
    """Rows of a commonsense set."""
    return against_the_plan(session, session.small, rows="commonsense")


def large(session: Session) -> dict[str, Any]:
    """The same at 7B, with an adapter of rank 64."""
    return against_the_plan(session, session.large, rows="commonsense", lora__rank=64)


def long_rows(session: Session) -> dict[str, Any]:
    """Rows of 2048 tokens at 7B, where activations count most."""
    return against_the_plan(session, session.large, rows="fixed-512" if session.is_tiny else "fixed-2048")


def against_the_plan(session: Session, name: str, *, rows: str, **settings: Any) -> dict[str, Any]:
    """A short run: the plan's total over the allocator's peak, as `plan_over_peak`."""
    model = session.model(name)
    batch, steps = (4, 3) if session.is_tiny else (32, STEPS_OF_A_RUN)
    data = session.rows(model, name=rows, count=batch * steps)
    shape = {"train__max_steps": steps, "train__global_batch": batch, "checkpoints__every": steps, **settings}
    run = train(session, "run", "--model", model, "--data", data, **shape)
    figures = run.figures()
    planned, peak = figures["planned_bytes"]["total"], figures["peak_reserved_bytes"]
    over = planned / peak if peak else None
    told = f"planned {planned / GIB:.3g} GiB, reserved {peak / GIB:.3g} GiB"
    commits = ", ".join(f"{each:.2f}" for each in figures["checkpoint_seconds"])
    return {"summary": f"{told}; commit {commits} s", "plan_over_peak": over, **figures}


STEPS = (
    Step(
        name="memory-1b",
        about="train at TinyLlama's shape: plan.memory_bytes against the allocator's peak",
        questions=(8, 25, 34, 35),
        work=small,
        seconds=240,
    ),
    Step(
        name="memory-7b",
        about="train at Mistral-7B's shape with rank 64",
        questions=(8, 19, 25, 34, 35),
        work=large,
        seconds=420,
    ),
)
MORE_STEPS = (
    Step(name="memory-long", about="rows of 2048 tokens at 7B", questions=(8, 25), work=long_rows, seconds=420),
)
