"""What sampling beside a training costs it: `python -m bench.monitoring`, in the repository's root.

    .venv/bin/python -m bench.monitoring                 ten minutes; writes bench/results/monitoring/DEVICE.{json,md}
    .venv/bin/python -m bench.monitoring --rounds 3 --steps 40 --results DIRECTORY

A small model is really trained, one run after another, with samples at each interval of `--seconds` and without any;
the order turns from round to round. The ratio of a round is that of the seconds of all steps after the first, with a
95 % interval over the rounds. The shortest interval is far below the default: what it costs, divided by how much more
often it samples, bounds what the default costs more closely than the default's own ratio can. A sample is also timed
by itself.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.floor.machine import described, write
from bench.monitoring.runs import Subject, made, step_seconds

RESULTS = Path(__file__).parents[1] / "results" / "monitoring"
DEFAULT_SECONDS, SHORT_SECONDS = 2.0, 0.05
OFF = 0.0
SAMPLES = 300


def sample_cost(device: str) -> dict[str, float]:
    """Median milliseconds of one sample, on the clock and of this thread's CPU, of the sources that a run has."""
    from loradock.machine import Host
    from loradock.training.observers.monitoring.monitor import sources_of

    sources, close = sources_of(Host(), gpu=0 if device == "cuda" else None, cpus=os.cpu_count() or 1)
    wall, cpu = [], []
    for _ in range(SAMPLES):
        began, began_cpu = time.perf_counter(), time.thread_time()
        for source in sources:
            source()
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
    close()
    return {"wall_ms": 1000 * statistics.median(wall), "cpu_ms": 1000 * statistics.median(cpu), "samples": SAMPLES}


def rounds_of(subject: Subject, *, rounds: int, intervals: list[float]) -> list[dict[float, float]]:
    """Mean seconds of a step by interval (0: no samples), a round an entry; one run before them counts for nothing."""
    arms = [OFF, *intervals]
    step_seconds(subject, every_seconds=OFF)
    found: list[dict[float, float]] = []
    for number in range(rounds):
        turned = arms[number % len(arms) :] + arms[: number % len(arms)]
        found.append({interval: step_seconds(subject, every_seconds=interval) for interval in turned})
        print(f"round {number + 1}/{rounds}: " + ", ".join(f"{k:g} s {1000 * v:.2f} ms" for k, v in found[-1].items()))
    return found


def summary(found: list[dict[float, float]], interval: float) -> dict[str, Any]:
    """The ratio to the runs without samples, its interval, and what that means at the default interval, in percent."""
    from loradock.env_check.paired_ratio import ratio

    over = ratio([math.log(each[interval] / each[OFF]) for each in found])
    share = interval / DEFAULT_SECONDS
    scaled = [None if end is None else 100 * (end - 1) * share for end in (over.value, over.low, over.high)]
    return {"ratio": over.value, "low": over.low, "high": over.high, "at_default_percent": scaled}


def table(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine, cost = record["machine"], record["sample"]
    subject = (
        f"{machine['device']}, torch {machine['stack']['torch']}, {machine['commit']}; {record['rounds']} rounds of "
        f"{record['steps']} steps, {1000 * record['step_seconds']:.1f} ms each without samples."
    )
    sample = (
        f"A sample takes {cost['wall_ms']:.2f} ms ({cost['cpu_ms']:.2f} ms of CPU): "
        f"{cost['wall_ms'] / 10 / DEFAULT_SECONDS:.3f} % of the default's {DEFAULT_SECONDS:g} s."
    )
    lines = [
        subject,
        "",
        sample,
        "",
        "| samples every | seconds of a step, with to without (95 %) | that at the default's interval |",
        "| ---: | ---: | ---: |",
    ]
    for interval, each in record["intervals"].items():
        ends = f" ({each['low']:.4f} .. {each['high']:.4f})" if each["low"] is not None else ""
        value, low, high = each["at_default_percent"]
        scaled = f"{value:.3f} %" + (f" ({low:.3f} .. {high:.3f})" if low is not None else "")
        lines.append(f"| {interval} s | {each['ratio']:.4f}{ends} | {scaled} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300, help="of each run")
    parser.add_argument("--seconds", type=float, nargs="+", default=[DEFAULT_SECONDS, SHORT_SECONDS])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    machine = described()
    with tempfile.TemporaryDirectory() as folder:
        subject = made(Path(folder), steps=options.steps)
        found = rounds_of(subject, rounds=options.rounds, intervals=options.seconds)
    record = {
        "machine": machine,
        "rounds": options.rounds,
        "steps": options.steps,
        "step_seconds": statistics.mean(each[OFF] for each in found),
        "sample": sample_cost(machine["kind"]),
        "intervals": {f"{interval:g}": summary(found, interval) for interval in options.seconds},
        "seconds": [{f"{interval:g}": each[interval] for interval in each} for each in found],
    }
    write(record, table(record), folder=options.results)


if __name__ == "__main__":
    main()
