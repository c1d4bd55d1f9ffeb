"""Launches, waits and milliseconds of the host for a micro-step, through the real CUDA dispatch path.

For a stand-in of a CUDA device whose launches do nothing (`tests/fakegpu/bare`): what is left is the host's work alone,
at real widths. On a GPU the milliseconds are those until the last launch is handed over, and launches are not counted.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.floor.machine import commit, stack
from bench.host.measures import quiet_machine
from bench.memory.allocator import FastPasses, as_a_run_does
from bench.memory.models import flat_batch
from bench.memory.peft import PeftPasses
from loradock.plan.memory.fast import Shape
from loradock.plan.memory.peft import Batch

WARM_UPS = 3
DOCUMENT = 512
COUNTERS = ("fakegpu_counts",)
"""The stand-in's function that gives its counters."""


class Counts(ctypes.Structure):
    """The stand-in's counters since it began."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("syncs", "launches", "cublas", "copies", "driver_launches", "mallocs", "captures", "faults")
    ]


def counters() -> Counts | None:
    """Where they are kept, or None on a GPU."""
    library = ctypes.CDLL("libcuda.so.1")
    name = next((each for each in COUNTERS if hasattr(library, each)), None)
    if name is None:
        return None
    function = getattr(library, name)
    function.restype = ctypes.POINTER(Counts)
    return function().contents


def arms(name: str, *, layers: int | None, tokens: int) -> Iterator[tuple[str, Callable[[], Any], int]]:
    """Each arm's name, its micro-step of so many tokens, and the model's layers; one model at a time on the device."""
    passes = FastPasses(name, layers=layers)
    for arm, again, cached in (("fast", 0, 0), ("fast, recomputed", 1, 0), ("fast, cached", 0, 1)):
        engine = passes.engine(Shape(tokens=tokens, checkpointed=again * passes.layers, cached=cached * passes.layers))
        batch = flat_batch(tokens, document=min(DOCUMENT, tokens), device="cuda")
        yield arm, partial(passes.step, engine, batch), passes.layers
        engine.keep_dense(0)
        del engine
    del passes
    gc.collect()
    torch.cuda.empty_cache()
    peft = PeftPasses(name, layers=layers)
    rows = Batch(rows=max(1, tokens // DOCUMENT), length=min(DOCUMENT, tokens))
    for arm, is_recomputed in (("trl", False), ("trl, recomputed", True)):
        yield arm, peft.step(rows, is_recomputed=is_recomputed), peft.layers


def measured(name: str, *, layers: int | None, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """By arm: launches (products of cuBLAS among them), waits for the device, and the host's milliseconds."""
    found: list[dict[str, Any]] = []
    seen = counters()
    for arm, step, depth in arms(name, layers=layers, tokens=tokens):
        for _ in range(WARM_UPS):
            step()
        gc.collect()
        before = of(seen)
        step()
        taken = {key: count - before[key] for key, count in of(seen).items()}
        times = [timed(step) for _ in range(rounds)]
        least, median = min(times), statistics.median(times)
        found.append({"model": name, "layers": depth, "arm": arm, **taken, "ms": least, "median_ms": median})
    return found


def of(seen: Counts | None) -> dict[str, int]:
    """What is counted, so far."""
    if seen is None:
        return {}
    return {"launches": seen.launches + seen.driver_launches + seen.cublas, "waits": seen.syncs}


def timed(step: Callable[[], Any]) -> float:
    """Milliseconds of this process's CPU: autograd has a thread of its own for a device, which the step waits for."""
    begin = time.process_time()
    step()
    return 1e3 * (time.process_time() - begin)


def write(models: Iterable[str], *, layers: int | None, tokens: int, rounds: int, folder: Path) -> None:
    """Measure and write dispatch.json and dispatch.md."""
    as_a_run_does()
    with quiet_machine():
        rows = [row for name in models for row in measured(name, layers=layers, tokens=tokens, rounds=rounds)]
    folder.mkdir(parents=True, exist_ok=True)
    content = {"commit": commit(), "stack": stack(), "tokens": tokens, "rounds": rounds, "rows": rows}
    (folder / "dispatch.json").write_text(json.dumps(content) + "\n")
    heading = f"One micro-step of {tokens} tokens in bfloat16, sm90; launches that do nothing, least of {rounds} turns."
    (folder / "dispatch.md").write_text(f"{heading}\n\n{table(rows)}")
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| model | layers | arm | launches | waits | host ms, least (median) |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        shown = (row["model"], row["layers"], row["arm"], row.get("launches", "-"), row.get("waits", "-"))
        lines.append(f"| {' | '.join(map(str, shown))} | {row['ms']:.1f} ({row['median_ms']:.1f}) |")
    return "\n".join([*lines, ""])
