"""What training in two processes costs on CPUs: `python -m bench.ddp`, in the repository's root.

    .venv/bin/python -m bench.ddp                  a minute; writes bench/results/ddp/DEVICE.{json,md}
    .venv/bin/python -m bench.ddp --steps 150 --results DIRECTORY

One real run of two processes (gloo, one thread each), whose steps are made in four ways in turn, so that what slows
the machine slows all of them: by one process alone, by both at once without a word between them (what sharing the
machine costs), as they are (what summing up costs besides), and as they are with reports that nobody signs or verifies.
A process has the same work in each. A step by both takes as long as the slower one. Blocks of steps give the 95 %
interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.floor.machine import described, write
from bench.monitoring.runs import Subject, made

RESULTS = Path(__file__).parents[1] / "results" / "ddp"
SAMPLES = 16
"""Of a step, over both processes."""
BLOCKS = 10
LEFT_OUT = 5
"""First steps of each way."""
RATIOS = {
    "both at once / alone": ("apart", "alone"),
    "summed up / both at once": ("pair", "apart"),
    "signed reports / unsigned": ("pair", "unsigned"),
}


def measured(subject: Subject) -> dict[str, list[float]]:
    """Seconds of every step by way; of both processes the longer ones."""
    from loradock.distributed import processes
    from loradock.distributed.place import place_of
    from loradock.distributed.seal import SECRET, drawn

    settings = {
        "train.max_steps": subject.steps,
        "train.global_batch": SAMPLES,
        "train.micro_batch": SAMPLES // 2,
        "train.packing": "false",
        "train.workers": 0,
        "engine": "fast",
        "device": "cpu",
        "logging.every": subject.steps,
        "checkpoints.every": subject.steps,
        "data.cache": subject.folder / "cache",
    }
    inputs = [
        "--model",
        subject.folder / "model",
        "--data",
        subject.folder / "rows.jsonl",
        "--output",
        subject.folder / "run",
    ]
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    worker = [sys.executable, Path(__file__).with_name("worker.py"), subject.folder]
    launched = processes.launch(
        [str(word) for word in (*worker, "train", "--skip-env-check", *inputs, *sets)],
        place=place_of(processes=2, nodes=1, node=None, meeting=None),
        environment={**os.environ, SECRET: drawn(), "CUDA_VISIBLE_DEVICES": "", "LORADOCK_CACHE": str(subject.folder)},
        folder=subject.folder,
        grace_seconds=None,
    )
    if launched.culprit:
        raise SystemExit(processes.told(launched) or "it was stopped")
    both = [json.loads((subject.folder / f"{rank}.json").read_text()) for rank in range(2)]
    together = [way for way in both[0] if way != "alone"]
    longer = {way: [max(pair) for pair in zip(both[0][way], both[1][way], strict=True)] for way in together}
    return {way: each[LEFT_OUT:] for way, each in {"alone": both[0]["alone"], **longer}.items()}


def ratios(found: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Each of RATIOS, of the medians of blocks of steps."""
    from loradock.env_check.paired_ratio import ratio

    size = min(map(len, found.values())) // BLOCKS
    blocks = [
        {way: statistics.median(each[start : start + size]) for way, each in found.items()}
        for start in range(0, size * BLOCKS, size)
    ]
    named = {}
    for name, (way, other) in RATIOS.items():
        over = ratio([math.log(block[way] / block[other]) for block in blocks])
        named[name] = {"value": over.value, "low": over.low, "high": over.high}
    return named


def table(record: dict[str, Any]) -> str:
    """The figures as Markdown."""
    machine = record["machine"]
    subject = (
        f"{machine['device']}, torch {machine['stack']['torch']}, {machine['commit']}; {record['steps']} steps of each "
        f"way, {record['gradient_bytes'] / 2**20:.2f} MiB of gradients; load average {record['load']:.1f}."
    )
    lines = [subject, "", "| a step | median |", "| --- | ---: |"]
    names = {
        "alone": "one process alone",
        "apart": "both at once",
        "pair": "both, summed up",
        "unsigned": "so, without signatures",
    }
    lines += [f"| {names[way]} | {1000 * seconds:.1f} ms |" for way, seconds in record["step_seconds"].items()]
    lines += ["", "| ratio | value (95 %) |", "| --- | ---: |"]
    for name, each in record["ratios"].items():
        lines.append(f"| {name} | {each['value']:.3f} ({each['low']:.3f} .. {each['high']:.3f}) |")
    return "\n".join([*lines, ""])


def gradient_bytes(folder: Path) -> int:
    """What is summed up in a step: the adapter's weights, in float32."""
    from safetensors import safe_open

    with safe_open(folder / "run" / "adapter" / "adapter_model.safetensors", framework="np") as weights:
        return sum(4 * math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each way")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subject = made(folder, steps=4 * (options.steps + LEFT_OUT + 1))
        found = measured(subject)
        summed_bytes = gradient_bytes(folder)
    record = {
        "machine": described(),
        "steps": options.steps,
        "gradient_bytes": summed_bytes,
        "load": os.getloadavg()[0],
        "step_seconds": {way: statistics.median(each) for way, each in found.items()},
        "ratios": ratios(found),
    }
    write(record, table(record), folder=options.results)


if __name__ == "__main__":
    main()
