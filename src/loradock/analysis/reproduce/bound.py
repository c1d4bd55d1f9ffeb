"""How far the steps of one run lie apart on CPUs of other instruction sets: measured curves, and what they bound.

Each curve is a run in float32 on one CPU (x86-64-v4, torch 2.10, one thread, 2026-11-27), made again with the kernels
of an older instruction set: `v3` is ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS at AVX2, `v2`
at default, SSE41 and SSE4_2. What is said of a step is the largest relative difference of a loss or a gradient norm up
to there. `python -m analysis.reproduce.measure_bound` (PYTHONPATH=tests) measures them. It is a bound by measurement,
not by proof: FACTOR is for other models, rates and seeds. In bfloat16 the same runs lie 0.8 apart at step 50, and
nothing useful is bounded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

KERNELS = frozenset((
    "instruction set", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
))  # fmt: skip
"""Names of differences that choose the kernels of a CPU, and nothing else."""
MEASURED_DTYPE = "float32"
FACTOR = 10
UP_TO = (1, 5, 10, 25, 50)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The largest relative difference up to each step of UP_TO, as far as the run went."""

    model: str
    instructions: str
    largest: tuple[float, ...]


CURVES = (
    Curve(model="the demo's base, NF4", instructions="v3", largest=(3.0e-07, 1.0e-05, 5.1e-05, 3.1e-04, 8.1e-04)),
    Curve(model="the demo's base, NF4", instructions="v2", largest=(7.4e-07, 2.9e-05, 3.4e-05, 1.2e-04, 7.3e-04)),
    Curve(model="SmolLM2-135M in float32", instructions="v3", largest=(5.3e-06, 2.6e-05, 5.1e-05)),
    Curve(model="SmolLM2-135M in float32", instructions="v2", largest=(4.5e-06, 2.6e-05, 2.6e-05)),
)


def bound_at(step: int) -> float | None:
    """What two runs may differ by up to a step; None beyond the last that was measured."""
    place = next((index for index, limit in enumerate(UP_TO) if step <= limit), None)
    if place is None:
        return None
    return FACTOR * max(curve.largest[place] for curve in CURVES if place < len(curve.largest))


def is_kernels(names: Collection[str], *, dtype: str | None) -> bool:
    """Whether all that differs is what the curves were measured for."""
    return bool(names) and KERNELS.issuperset(names) and dtype == MEASURED_DTYPE


def is_within(differences: Collection[tuple[int, float]]) -> bool:
    """Whether each (step, relative difference) is within the bound of its step."""
    return all((limit := bound_at(step)) is not None and value <= limit for step, value in differences)


def unknown(names: Collection[str], *, dtype: str | None) -> str:
    """Why no bound holds for what differs, or that it is passed."""
    if is_kernels(names, dtype=dtype):
        return f"that is beyond the bound of another instruction set, which is known to step {UP_TO[-1]}"
    if KERNELS.issuperset(names):
        return f"a bound of another instruction set is known for products in {MEASURED_DTYPE} on a CPU alone"
    return f"no bound is known where {', '.join(name for name in names if name not in KERNELS)} differ"
