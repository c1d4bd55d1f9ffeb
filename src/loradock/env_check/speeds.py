"""Speeds: timed in turns, judged by a GPU's published figure, and explained by the state of the GPU meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from loradock.env_check.base import Finding, ok, warning
from loradock.env_check.gpu_state import suspects
from loradock.machine.answers import GpuState
from loradock.plan.gpu_table import NamedGpu

ROUNDS = 5
UNITS = {"tflops": "TFLOP/s", "gb_per_second": "GB/s"}


def medians(works: Mapping[str, Callable[[], object]], *, settle: Callable[[], object]) -> dict[str, float]:
    """The median seconds of each piece of work, all done in turns so that a disturbance meets each of them.

    `settle` waits until the device has done what it was given.
    """
    rates: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    settle()
    for _ in range(ROUNDS):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            settle()
            rates[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in rates.items()}


def judge(
    name: str,
    rates: Mapping[str, float],
    *,
    subject: str,
    peak: NamedGpu | None,
    published: float | None,
    gpu: GpuState | None = None,
) -> Finding:
    """The best of the rates against what is published; ok with a word on it where nothing is.

    `rates` are named with their unit (bf16_tflops), `published` is in the same. The text holds no rate, which differs
    from run to run: those are measured, with the number of the GPU before their names (gpu0_bf16_tflops).
    """
    prefix = f"gpu{gpu.index}_" if gpu else ""
    measured = {f"{prefix}{key}": round(rate, 3) for key, rate in rates.items()}
    if peak is None or published is None:
        return ok(f"{subject}: measured; there is no published figure to compare with", **measured)
    fraction, floor = max(rates.values()) / published, peak.floors[name]
    unit = next(text for ending, text in UNITS.items() if next(iter(rates)).endswith(ending))
    measured[f"{prefix}fraction"] = round(fraction, 3)
    if fraction >= floor:
        return ok(f"{subject}: at least {floor:.0%} of the published {published:g} {unit}", **measured)
    why = ", ".join(suspects(gpu) if gpu else ()) or "the GPU's state shows no cause"
    return warning(
        f"{subject}: less than {floor:.0%} of the published {published:g} {unit} ({why})",
        remedy=f"nvidia-smi -q -i {gpu.index if gpu else 0} -d PERFORMANCE,CLOCK,POWER,PIDS",
        **measured,
    )
