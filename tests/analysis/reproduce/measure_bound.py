"""The curves of `loradock.analysis.reproduce.bound`: one run by other kernels, and by more threads.

PYTHONPATH=tests python -m analysis.reproduce.measure_bound FOLDER MODEL ROWS [STEPS] [OPTIONS OF TRAIN]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from loradock.analysis.reproduce.bound import UP_TO
from loradock.analysis.reproduce.comparison import Measured, compared
from loradock.training.run_dir.record import metrics

MADE_WITH = {
    "here": {},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "3 threads": {"OMP_NUM_THREADS": "3"},
    "8 threads": {"OMP_NUM_THREADS": "8"},
    "v3": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_MADE_WITH": "AVX2"},
    "v2": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_MADE_WITH": "SSE4_2"},
}
SETTINGS = ("logging.every=1", "logging.monitor_seconds=0", "train.learning_rate=0.002", "data.max_length=128")


def measure(folder: Path, model: str, rows: str, *, steps: int, options: Sequence[str]) -> None:
    """Train in each way, and print how far it lies from one thread with all that this machine's CPU has."""
    for name, variables in MADE_WITH.items():
        settings = [text for setting in SETTINGS for text in ("--set", setting)]
        where = ("--model", model, "--data", rows, "--max-steps", str(steps), "--output", str(folder / name))
        command = [sys.executable, "-m", "loradock", "train", *where, *settings, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    first = of(folder / "here")
    for name in list(MADE_WITH)[1:]:
        differences = compared(first, of(folder / name), steps=steps).differences
        largest = [max((value for step, value in differences if step <= limit), default=0.0) for limit in UP_TO]
        click.echo(f"{name}: {', '.join(f'{value:.1e}' for value in largest)} up to steps {', '.join(map(str, UP_TO))}")


def of(directory: Path) -> Measured:
    """What a run measured."""
    return Measured({kind: metrics(directory, kind) for kind in ("train", "eval")})


if __name__ == "__main__":
    place, base, data, *others = sys.argv[1:]
    count = int(others.pop(0)) if others and others[0].isdecimal() else UP_TO[-1]
    measure(Path(place), base, data, steps=count, options=others)
