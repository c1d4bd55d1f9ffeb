"""Whether dense copies of NF4 weights pay on this machine: `python -m bench.weight_cache`, in the repository's root.

    .venv/bin/python -m bench.weight_cache --model DIR        writes bench/results/weight_cache/DEVICE.{json,md}

The model is really trained, one run after another: with a dense copy of every layer (`model.cache_weights`) and with
none, the order turned from round to round. The ratio of a round is that of the mean CPU seconds of all steps after
the first ones, with a 95 % interval over the rounds; the losses of both are the same bit for bit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.floor.machine import described, write
from bench.monitoring.runs import made, step_cpu_seconds

RESULTS = Path(__file__).parents[1] / "results" / "weight_cache"


def main() -> None:
    """Measure and write."""
    from loradock.env_check.paired_ratio import ratio

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model directory; a random one of 3 layers else")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        subject = made(Path(folder), steps=options.steps)
        subject = dataclasses.replace(subject, model=options.model or subject.model)
        layers = json.loads((subject.model / "config.json").read_text())["num_hidden_layers"]
        found: list[dict[int, float]] = []
        for number in range(options.rounds):
            arms = (0, layers) if number % 2 else (layers, 0)
            found.append({cached: step_cpu_seconds(subject, f"model.cache_weights={cached}") for cached in arms})
            print({cached: round(1000 * seconds, 1) for cached, seconds in found[-1].items()}, flush=True)
    over = ratio([math.log(each[layers] / each[0]) for each in found])
    record = {
        "machine": described(),
        "layers": layers,
        "steps": options.steps,
        "ratio": dataclasses.asdict(over),
        "seconds": [{str(cached): seconds for cached, seconds in each.items()} for each in found],
    }
    plain = statistics.mean(each[0] for each in found)
    ends = "" if over.low is None or over.high is None else f" ({over.low:.2f} .. {over.high:.2f})"
    text = (
        f"{record['machine']['device']}, {layers} layers, {options.rounds} rounds of {options.steps} steps, "
        f"{1000 * plain:.0f} ms of CPU each without dense copies: a step with a dense copy of every layer takes "
        f"{over.value:.2f}{ends} of that.\n"
    )
    write(record, text, folder=options.results)


if __name__ == "__main__":
    main()
