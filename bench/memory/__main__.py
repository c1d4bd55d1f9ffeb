"""What the fast engine's micro-step keeps alive, against the memory model: `python -m bench.memory`.

    .venv/bin/python -m bench.memory                 the four real configs without their content; some minutes
    .venv/bin/python -m bench.memory --models tinyllama-1.1b --results DIRECTORY

    tests/fakegpu/bare .venv/bin/python -m bench.memory --allocator    the same on a CUDA device, or its stand-in
    FAKEGPU_MEMORY=400000000000 tests/fakegpu/bare .venv/bin/python -m bench.memory --mixtures    mixtures of experts
    FAKEGPU_MEMORY=400000000000 tests/fakegpu/bare .venv/bin/python -m bench.memory --latents    over latents
    FAKEGPU_MEMORY=400000000000 tests/fakegpu/bare .venv/bin/python -m bench.memory --hybrids    recurrent layers
    FAKEGPU_MEMORY=400000000000 tests/fakegpu/bare .venv/bin/python -m bench.memory --families    other families

Writes bench/results/memory/live-bytes.{json,md}, or with --allocator allocator.{json,md}: what torch's CUDA allocator
takes for passes of both engines, against the plan; with --mixtures mixtures.{json,md}, with --latents
latents.{json,md}, with --hybrids hybrids.{json,md}, with --families families.{json,md}. Without these needs no GPU and
little memory.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from bench.floor.machine import commit, stack
from bench.memory import allocator_table as allocator
from bench.memory import mixtures
from bench.memory.live import LiveBytes
from bench.memory.measure import Found, Measurement, as_dict
from bench.memory.models import adapted, no_launches
from bench.train.models import MODELS, settings
from loradock.plan.memory.fast import Shape
from loradock.training.backends.fast.attention.flash_torch import FlashTorch
from loradock.training.backends.fast.kernels import fused

RESULTS = Path(__file__).parents[1] / "results" / "memory"
REAL = ("tinyllama-1.1b", "phi-3-mini", "mistral-7b", "llama-3-8b")
DOCUMENT = 166
MIB = 1 << 20


def shapes(layers: int) -> tuple[Shape, ...]:
    """Small and large budgets, and every kind of checkpointing and caching."""
    return (
        Shape(tokens=4096, checkpointed=0),
        Shape(tokens=4096, checkpointed=layers // 2),
        Shape(tokens=4096, checkpointed=layers - 1),
        Shape(tokens=4096, checkpointed=layers),
        Shape(tokens=16384, checkpointed=0),
        Shape(tokens=512, checkpointed=0, cached=layers // 2),
    )


def table(results: dict[str, list[Found]]) -> str:
    """The figures as Markdown."""
    lines = [
        "MiB, measured and expected; documents of 166 tokens, rank 16 on all linear layers, bfloat16.",
        "",
        "| model | tokens | checkpointed | cached | held | optimiser | training, beyond | off by | evaluation |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in results.items():
        for each in found:
            shape = each.shape
            held, optimizer, training = (
                f"{pair[0] / MIB:,.0f} / {pair[1] / MIB:,.0f}" for pair in (each.held, each.optimizer, each.training)
            )
            off = f"{each.training[1] / each.training[0] - 1:+.1%}"
            evaluation = f"{each.evaluation / MIB:,.0f}"
            row = (name, shape.tokens, shape.checkpointed, shape.cached, held, optimizer, training, off, evaluation)
            lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join([*lines, ""])


def measured(name: str) -> list[Found]:
    """All shapes of one model."""
    live = LiveBytes()
    with no_launches():
        with live:
            model: Any = adapted(settings(name), dtype=torch.bfloat16, device="meta")
        card = Measurement(model, live, attention=FlashTorch(), kernels=fused, document=DOCUMENT, name=name)
        return [card.of(shape) for shape in shapes(model.config.num_hidden_layers)]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted({*MODELS, *mixtures.PUBLISHED_NAMES}))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--allocator", action="store_true", help="needs a CUDA device: what its allocator takes")
    parser.add_argument("--mixtures", action="store_true", help="the same of mixtures of experts")
    parser.add_argument("--latents", action="store_true", help="the same of mixtures with attention over latents")
    parser.add_argument("--hybrids", action="store_true", help="the same of the first layers of hybrids, fast engine")
    parser.add_argument("--families", action="store_true", help="the same of the first layers of other dense models")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.mixtures:
        names = options.models or tuple(mixtures.NAMES)
        allocator.write(names, folder=options.results, of=allocator.of_mixture, name="mixtures")
        return
    if options.latents:
        names = options.models or tuple(mixtures.LATENTS)
        allocator.write(names, folder=options.results, of=allocator.of_mixture, name="latents")
        return
    if options.hybrids:
        names = options.models or tuple(mixtures.HYBRIDS)
        allocator.write(names, folder=options.results, of=allocator.of_hybrid, name="hybrids")
        return
    if options.families:
        names = options.models or tuple(mixtures.FAMILIES)
        allocator.write(names, folder=options.results, of=allocator.of_family, name="families")
        return
    if options.allocator:
        allocator.write(options.models or REAL, folder=options.results, of=allocator.of_model, name="allocator")
        return
    results = {name: measured(name) for name in options.models or REAL}
    options.results.mkdir(parents=True, exist_ok=True)
    content = {
        "commit": commit(),
        "stack": stack(),
        "sources": {name: MODELS[name]["source"] for name in results},
        "bytes": {name: [as_dict(each) for each in found] for name, found in results.items()},
    }
    (options.results / "live-bytes.json").write_text(json.dumps(content) + "\n")
    (options.results / "live-bytes.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
