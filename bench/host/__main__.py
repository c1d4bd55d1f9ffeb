"""The host's cost of a micro-step, TRL against the fast engine: `python -m bench.host`, in the repository's root.

    .venv/bin/python -m bench.host                  five minutes; writes bench/results/host/host.{json,md}
    .venv/bin/python -m bench.host --models llama-3-8b --layers 2 --rounds 2 --results DIRECTORY

    tests/fakegpu/bare .venv/bin/python -m bench.host --dispatch     the same by CUDA's own dispatch, at real widths;
                                                    writes dispatch.{json,md} there, and needs the stand-in's device

Kernels are counted over tensors without content on a card that need not be there (`card`, `launches`). Milliseconds are
those of a CPU on layers as narrow as can be, whose kernels take next to no time, with CUDA launches that do nothing
(`silent`). Nothing here needs a card, and no figure is one of a card.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

RESULTS = Path(__file__).parents[1] / "results" / "host"
MODELS = ("llama-3-8b", "mistral-7b", "tinyllama-1.1b", "phi-3-mini")
STACK = ("torch", "triton", "transformers", "peft", "trl", "bitsandbytes")


def main() -> None:
    """Measure and write."""
    from bench.host.measures import count, time_around, time_micro_steps
    from bench.host.tables import table
    from bench.train.models import settings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--layers", type=int, help="in the place of each model's own number")
    parser.add_argument("--tokens", type=int, default=4096, help="of the micro-step whose kernels are counted")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved repeats of each arm; the least time counts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--dispatch", action="store_true", help="needs a CUDA device: launches, waits, milliseconds")
    options = parser.parse_args()
    if options.dispatch:
        from bench.host import dispatch

        shape: dict[str, Any] = {"layers": options.layers, "tokens": options.tokens, "rounds": options.rounds}
        dispatch.write(options.models, **shape, folder=options.results)
        return
    measured: dict[str, Any] = {}
    for name in options.models:
        values = settings(name)
        values["num_hidden_layers"] = options.layers or values["num_hidden_layers"]
        measured[name] = {
            "layers": values["num_hidden_layers"],
            "kernels": count(values, tokens=options.tokens),
            "milliseconds": time_micro_steps(values, rounds=options.rounds),
        }
    values = settings(options.models[0])
    values["num_hidden_layers"] = options.layers or values["num_hidden_layers"]
    record = {
        "machine": {"cpu": processor(), "python": platform.python_version(), **{each: version(each) for each in STACK}},
        "tokens": options.tokens,
        "rounds": options.rounds,
        "models": measured,
        "around": {"model": options.models[0], **time_around(values, rounds=options.rounds)},
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "host.json").write_text(json.dumps(record) + "\n")
    (options.results / "host.md").write_text(table(record))
    print(table(record))


def processor() -> str:
    """The CPU's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
