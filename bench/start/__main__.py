"""Seconds from the command to the demo's first optimiser step: `python -m bench.start [--baseline SRC] [--rounds N]`.

Each round starts `loradock train --demo` with an empty cache (the first start), with what that one proved (the second),
and, with --baseline, with another source tree, in turn. CPU-seconds are of the whole command with all its children.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import loradock

OURS = Path(loradock.__file__).parents[1]
RESULTS = Path(__file__).parents[1] / "results" / "start"
FIRST_STEP = "step 1/"


def started(source: Path, folder: Path, *, cache: Path) -> dict[str, float]:
    """Wall seconds to the first step's line, CPU-seconds of the command, and its seconds of the environment check."""
    command = [sys.executable, "-m", "loradock", "train", "--demo", "--max-steps", "1", "--output", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(source), "LORADOCK_CACHE": str(cache), "NO_COLOR": "1"}
    before, began, first = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0.0
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        for line in process.stderr or ():
            if FIRST_STEP in line and not first:
                first = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode or not first:
        raise SystemExit(f"{command} ended with {process.returncode} and no step")
    (record,) = folder.glob("*/run.json")
    spent = json.loads(record.read_text(encoding="utf-8"))["timings_seconds"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first_step_seconds": first, "cpu_seconds": cpu, "env_check_seconds": spent["env-check"]}


def measured(sources: dict[str, Path], *, rounds: int) -> dict[str, list[dict[str, float]]]:
    """{side: one measurement a round}: each source with an empty cache, then again."""
    sides: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory() as folder:
                for turn in ("first", "second"):
                    side = started(source, Path(folder, turn), cache=Path(folder, "cache"))
                    sides.setdefault(f"{name}, {turn} start", []).append(side)
                    print(number, name, turn, side, file=sys.stderr, flush=True)
    return sides


def table(sides: dict[str, list[dict[str, float]]], *, load: float) -> str:
    """The medians, in Markdown."""
    names = ("first_step_seconds", "cpu_seconds", "env_check_seconds")
    lines = [
        f"Starts of `loradock train --demo --max-steps 1` on {os.cpu_count()} CPUs, load before {load:.1f}; medians.",
        "",
        "| side | first step, s | CPU-seconds, whole command | environment check, s |",
        "| --- | ---: | ---: | ---: |",
    ]
    for side, runs in sides.items():
        medians = (statistics.median(run[name] for run in runs) for name in names)
        lines.append(f"| {side} | " + " | ".join(f"{value:.1f}" for value in medians) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the table, and write it below bench/results/start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", type=Path, help="The src folder of another checkout.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="cpu")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    sources = {"before": options.baseline.resolve()} if options.baseline else {}
    sides = measured({**sources, "now": OURS}, rounds=options.rounds)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps({"load": load, "sides": sides}, indent=1) + "\n")
    (RESULTS / f"{options.name}.md").write_text(table(sides, load=load))
    print(table(sides, load=load))


if __name__ == "__main__":
    main()
