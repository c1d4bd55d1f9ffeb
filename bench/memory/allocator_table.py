"""Every shape of every model through the CUDA allocator, as a table: both engines, against the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from bench.floor.machine import commit, stack
from bench.memory import mixtures
from bench.memory.allocator import DOCUMENT, FastPasses, Taken, as_a_run_does, empty, shapes
from bench.memory.peft import PeftPasses
from loradock.plan.memory.fast import Shape
from loradock.plan.memory.peft import Batch

BUDGETS = (2048, 4096, 8192, 16384)
MIXTURE_BUDGETS = (4096, 16384)
HYBRID_DOCUMENTS, FIRST_LAYERS = (24, 166, 1000), 8
BATCHES = (Batch(rows=4, length=512), Batch(rows=4, length=1024), Batch(rows=8, length=1024))
GIB = 1 << 30


def write(models: Iterable[str], *, folder: Path, of: Callable[[str], Iterator[Taken]], name: str) -> None:
    """Measure and write `name`.json and .md; `of`: the shapes of one model."""
    as_a_run_does()
    found = [taken for model in models for taken in of(model)]
    folder.mkdir(parents=True, exist_ok=True)
    content = {"commit": commit(), "stack": stack(), "device": torch.cuda.get_device_name()}
    content["shapes"] = [each.as_dict() for each in found]
    (folder / f"{name}.json").write_text(json.dumps(content) + "\n")
    (folder / f"{name}.md").write_text(table(found))
    print(table(found))


def of_model(name: str) -> Iterator[Taken]:
    """The shapes of one model, by the fast engine and by TRL's path."""
    fast = FastPasses(name)
    for shape in shapes(fast.layers, budgets=BUDGETS):
        yield fast.of(shape)
    del fast
    empty()
    peft = PeftPasses(name)
    for batch in BATCHES:
        for is_recomputed in (False, True):
            yield peft.of(batch, is_recomputed=is_recomputed)
    del peft
    empty()


def of_mixture(name: str) -> Iterator[Taken]:
    """The shapes of one mixture: fewer, since each launches what all of its experts need."""
    fast = FastPasses(name)
    for tokens in MIXTURE_BUDGETS:
        for recomputed in (0, fast.layers):
            yield fast.of(Shape(tokens=tokens, checkpointed=recomputed))
    del fast
    empty()
    peft = PeftPasses(name)
    for is_recomputed in (False, True):
        yield peft.of(BATCHES[-1], is_recomputed=is_recomputed)
    del peft
    empty()


def of_hybrid(name: str) -> Iterator[Taken]:
    """The shapes of the first layers of one hybrid by the fast engine, in short, common and long documents."""
    with mixtures.solved():
        for document in HYBRID_DOCUMENTS:
            fast = FastPasses(name, layers=FIRST_LAYERS, document=document)
            for tokens in MIXTURE_BUDGETS:
                for recomputed in (0, fast.layers):
                    yield fast.of(Shape(tokens=tokens, checkpointed=recomputed))
            del fast
            empty()


def of_family(name: str) -> Iterator[Taken]:
    """The shapes of the first layers of one dense model by the fast engine."""
    fast = FastPasses(name, layers=FIRST_LAYERS)
    for shape in shapes(fast.layers, budgets=MIXTURE_BUDGETS):
        yield fast.of(shape)
    del fast
    empty()


def table(found: list[Taken]) -> str:
    """The figures as Markdown, and the worst of them."""
    ratios = sorted(each.ratio for each in found)
    lines = [
        "GiB: the peaks of torch's CUDA allocator (expandable segments) and the plan without `runtime`, which no",
        "allocator sees; ratio: plan over reserved. Rank 16 on all linear layers (and experts), bfloat16, sm90; the",
        "optimiser's state counted. Fast: the largest pass and four of 80 to 100 % of it, and an evaluation;",
        "the tokens of its documents where they are not 166.",
        f"Plan over reserved: {ratios[0]:.3f} to {ratios[-1]:.3f}, in the middle {ratios[len(ratios) // 2]:.3f}.",
        "",
        "| engine | model | tokens | recomputed | cached | allocated | reserved | plan | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in found:
        sizes = (f"{size / GIB:.2f}" for size in (each.allocated, each.reserved, each.plan))
        model = each.model if each.document == DOCUMENT else f"{each.model}, {each.document}"
        row = (each.engine, model, f"{each.tokens:,}", f"{each.recomputed} of {each.layers}", each.cached, *sizes)
        lines.append(f"| {' | '.join(map(str, row))} | {each.ratio:.3f} |")
    return "\n".join([*lines, ""])
