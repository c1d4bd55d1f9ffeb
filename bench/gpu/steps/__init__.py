"""The steps of scripts/gpu in order of priority. To add one: its file's tuple of steps, and its line here."""

from __future__ import annotations

from bench.gpu.steps import analysis, ceilings, equality, faults, memory, rest, smoke, speed
from bench.gpu.steps.base import Step

STEPS: tuple[Step, ...] = (
    *smoke.STEPS,
    *equality.STEPS,
    *ceilings.STEPS,
    *speed.STEPS,
    *memory.STEPS,
    *faults.STEPS,
    *analysis.STEPS,
    *speed.MORE_STEPS,
    *memory.MORE_STEPS,
    *analysis.MORE_STEPS,
    *rest.STEPS,
)
