"""What training in two processes costs: `python -m bench.ddp`, in the repository's root.

    .venv/bin/python -m bench.ddp                 ten minutes; writes bench/results/ddp/DEVICE.{json,md}
    .venv/bin/python -m bench.ddp --rounds 2 --steps 60 --results DIRECTORY

Equal work for a process in every arm but the last: so many samples a step, one thread.

    alone   one process, nothing beside it
    apart   two processes that know nothing of one another: what sharing the machine costs
    pair    two processes of one run under `loradock launch`, with twice the samples: what summing up costs besides
    whole   one process with twice the samples a step: the work of the pair

Each arm is a real `loradock train`, started cold; the order turns from round to round. The ratio of a round is that of
the median seconds of a step, by the run's own metric lines after the first ones, with a 95 % interval over the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.floor.machine import described, write
from bench.monitoring.runs import Subject, made

RESULTS = Path(__file__).parents[1] / "results" / "ddp"
SAMPLES = 8
LINE_STEPS = 5
ARMS = {"alone": (1, 1, SAMPLES), "apart": (2, 1, SAMPLES), "pair": (1, 2, 2 * SAMPLES), "whole": (1, 1, 2 * SAMPLES)}
"""Runs at once, processes of each, samples a step."""
RATIOS = {"apart": "alone", "pair": "apart", "whole": "pair"}
"""What is told: the first against the second."""


def step_seconds(subject: Subject, arm: str) -> float:
    """Median seconds of a step of an arm; of two runs at once the mean of theirs."""
    runs, processes, samples = ARMS[arm]
    folders = [subject.folder / f"run-{number}" for number in range(runs)]
    words = [command(subject, folder, processes, samples) for folder in folders]
    started = [subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for each in words]
    try:
        codes = [each.wait() for each in started]
        if any(codes):
            raise SystemExit(f"a run of {arm} ended with {codes}")
        return statistics.mean(of_run(folder) for folder in folders)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def command(subject: Subject, folder: Path, processes: int, samples: int) -> list[str]:
    """The run of an arm, as a user types it."""
    settings = {
        "train.max_steps": subject.steps,
        "train.global_batch": samples,
        "train.micro_batch": SAMPLES,
        "train.packing": "false",
        "train.workers": 0,
        "device": "cpu",
        "logging.every": LINE_STEPS,
        "checkpoints.every": subject.steps,
        "data.cache": subject.folder / "cache",
    }
    launch = ["launch", "--nproc", str(processes)] if processes > 1 else []
    inputs = ["--model", subject.folder / "model", "--data", subject.folder / "rows.jsonl", "--output", folder]
    words = ["train", "--skip-env-check", *inputs]
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "loradock", *launch, *map(str, words), *sets]


def of_run(folder: Path) -> float:
    """By the run's metric lines; those that a pause of loading or warming up is in are left out."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    trained = [line for line in lines if line["kind"] == "train" and line["step"] > 2 * LINE_STEPS]
    return statistics.median(line["seconds"] / LINE_STEPS for line in trained)


def rounds_of(subject: Subject, *, rounds: int) -> list[dict[str, float]]:
    """Seconds of a step by arm, a round an entry."""
    found: list[dict[str, float]] = []
    names = list(ARMS)
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        found.append({arm: step_seconds(subject, arm) for arm in turned})
        print(f"round {number + 1}/{rounds}: " + ", ".join(f"{arm} {1000 * found[-1][arm]:.1f} ms" for arm in names))
    return found


def ratios(found: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Each of RATIOS over the rounds."""
    from loradock.diagnosis.statistics import ratio

    named = {}
    for arm, other in RATIOS.items():
        over = ratio([math.log(each[arm] / each[other]) for each in found])
        named[f"{arm} / {other}"] = {"value": over.value, "low": over.low, "high": over.high}
    return named


def table(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine, medians = record["machine"], record["step_seconds"]
    subject = (
        f"{machine['device']}, torch {machine['stack']['torch']}, {machine['commit']}; {record['rounds']} rounds of "
        f"{record['steps']} steps; load average {record['load'][0]:.1f} before, {record['load'][1]:.1f} at the end."
    )
    lines = [
        subject,
        "",
        "| arm | processes | samples a step | seconds of a step, median of the rounds |",
        "| --- | ---: | ---: | ---: |",
    ]
    for arm, (runs, processes, samples) in ARMS.items():
        count = f"{runs} x 1" if runs > 1 else str(processes)
        lines.append(f"| {arm} | {count} | {samples} | {1000 * medians[arm]:.1f} ms |")
    lines += ["", "| ratio | value (95 %) |", "| --- | ---: |"]
    for name, each in record["ratios"].items():
        ends = f" ({each['low']:.3f} .. {each['high']:.3f})" if each["low"] is not None else ""
        lines.append(f"| {name} | {each['value']:.3f}{ends} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150, help="of each run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    before = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as folder:
        found = rounds_of(made(Path(folder), steps=options.steps), rounds=options.rounds)
    record = {
        "machine": described(),
        "rounds": options.rounds,
        "steps": options.steps,
        "load": [before, os.getloadavg()[1]],
        "step_seconds": {arm: statistics.median(each[arm] for each in found) for arm in ARMS},
        "ratios": ratios(found),
        "seconds": found,
    }
    write(record, table(record), folder=options.results)


if __name__ == "__main__":
    main()
