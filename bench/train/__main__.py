"""Training speed, side by side: `python -m bench.train`, in the repository's root.

    .venv/bin/python -m bench.train                   CPU: model 120m, TRL's arms and ours, 3 interleaved repeats
    .venv/bin/python -m bench.train --models mistral-7b --rows commonsense fixed-1024 --arms trl-best ours
    .venv/bin/python -m bench.train --table --name NAME             only the table and the chart, from the lines

Every arm trains the same random-weights model on the same rows in the same order, in a process of its own. Each slice
(one arm, one repeat) is appended to bench/results/train/NAME.jsonl as soon as it is over, and is not run again: the
same command goes on where it was stopped, by --total-seconds or by Ctrl-C. Exit code 3 says that slices are left.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from bench.floor.machine import ROOT
from bench.train import tables
from bench.train.arms import ARMS
from bench.train.campaign import Campaign, machine_of
from bench.train.lines import read
from bench.train.models import MODELS

LEFT = 3
SHORT = ("trl-vanilla", "trl-best", "trl-packing", "unsloth", "unsloth-best", "ours", "ours-trl")
DEFAULTS = {  # of the options that are not given, by device
    "cpu": {"models": ["120m"], "samples": 8, "steps": 14, "warmup_steps": 4, "budget_tokens": 2048, "threads": 1},
    "cuda": {
        "models": ["mistral-7b"],
        "samples": 64,
        "steps": 40,
        "warmup_steps": 10,
        "budget_tokens": 8192,
        "threads": 0,
    },
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--models", nargs="+", choices=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    add("--rows", nargs="+", default=["commonsense"], metavar="SET", help="commonsense, instructions or fixed-N")
    add("--arms", nargs="+", choices=list(ARMS), default=list(SHORT), metavar="ARM", help=", ".join(ARMS))
    add("--repeats", type=int, default=3, help="interleaved: every arm once, then every arm again")
    add("--steps", type=int, help="optimiser steps of a slice (CPU 14, GPU 40)")
    add("--warmup-steps", type=int, help="steps that do not count (CPU 4, GPU 10)")
    add("--samples", type=int, help="rows of an optimiser step (CPU 8, GPU 64)")
    add("--budget-tokens", type=int, help="micro-batch of the peers that do not pad (CPU 2048, GPU 8192)")
    add("--checkpoint-peers", action="store_true", help="gradient checkpointing in all peers, where memory demands it")
    add("--attention", default="sdpa", help="of TRL's arms: sdpa, flash_attention_2 where it is installed")
    add("--threads", type=int, help="CPUs of each arm's process, 0: all (CPU 1, GPU 0)")
    add("--seed", type=int, default=0, help="of adapters and of the order of rows")
    add("--dropout", type=float, default=0.0, metavar="SHARE", help="before the adapters, in all arms")
    add("--slice-seconds", type=float, default=420.0, help="an arm stops after so long, with the steps that it made")
    add("--total-seconds", type=float, default=0.0, help="begin no slice that could end later than this; 0: no limit")
    add("--floor-seconds", type=float, default=10.0, help="for the machine's ceiling, once a repeat; 0: leave it out")
    add("--skip-env-check", action="store_true", help="passed on to loradock train")
    add("--set", dest="switches", action="append", default=[], metavar="KEY=VALUE", help="for our own arms")
    add("--unsloth-python", metavar="PATH", help="the Python of unsloth's venv; its arms are left out without it")
    add("--unsloth-packages", default="", metavar="DIR", help="a folder of packages to put before that Python's own")
    add("--retry-failed", action="store_true", help="run slices that failed again")
    add("--make-only", action="store_true", help="make models and rows, train nothing")
    add("--table", action="store_true", help="train nothing")
    add("--name", help="of the results; default: the device's")
    add("--work", type=Path, default=Path("/tmp/bench-train"), help="where models and rows are kept")
    add("--results", type=Path, default=ROOT / "bench" / "results" / "train")
    return made


def main() -> int:
    """Run what is left to run, write the table; 3 where slices are left over."""
    options = parser().parse_args()
    machine = machine_of(options.device)
    for name, value in DEFAULTS[machine["kind"]].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if not 0 < options.warmup_steps < options.steps:
        sys.exit(f"error: --warmup-steps {options.warmup_steps} has to lie between 0 and --steps {options.steps}")
    name = options.name or re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    file = options.results / f"{name}.jsonl"
    campaign = Campaign(options, machine=machine, file=file)
    left = 0 if options.table else campaign.run()
    lines = read(file)
    if lines:
        text = tables.markdown(lines, warmup_steps=options.warmup_steps, peak_flops=campaign.peak_flops)
        file.with_suffix(".md").write_text(text, encoding="utf-8")
        tables.chart(lines, file.with_suffix(".png"), warmup_steps=options.warmup_steps)
        print(text)
    if left:
        print(f"{left} slice(s) are left: the same command goes on", file=sys.stderr)
    return LEFT if left else 0


if __name__ == "__main__":
    sys.exit(main())
