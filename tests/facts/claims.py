"""Every figure of the five notes behind the presets `seed-*`, beside what is measured or modelled here.

`PYTHONPATH=src:tests .venv/bin/python -m facts.claims > docs/claims.md` makes the page; a test holds it current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from facts.recorded import data, models

from loradock.analysis.diagnose.seeds import SEEDS
from loradock.config.load import load
from loradock.errors import LoradockError
from loradock.facts import DataFacts, Facts
from loradock.plan import planner
from loradock.plan.audit.findings import fits
from loradock.plan.audit.gain import gain
from loradock.plan.changed import changed
from loradock.plan.context import Context
from loradock.plan.planner import context_of

HEAD = """# What the five stories claim, and what is found here

<!-- Made by: PYTHONPATH=src:tests .venv/bin/python -m facts.claims > docs/claims.md -->

The notes behind the presets `seed-000` to `seed-004` ([tuning.md](tuning.md) judges them rule by rule), figure by
figure. **Modelled** is the speed and memory model of `loradock plan` on the story's GPU and model, with the preset as
the start; it compares plans and promises no seconds, and gains are in real tokens a second. **Measured** is this
project's own measurement on CPUs, with its file. Nothing was run on the stories' GPUs ([gpu.md](gpu.md)): there,
`loradock diagnose --preset seed-NNN` measures a story's table.
"""


VISIBLE = 1.01
"""How much shorter rows get, that samples and tokens a second are told apart."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a note was written about, as far as it says so; `rows` is what is assumed of its data."""

    name: str
    about: str
    gpu: str
    model: str
    rows: DataFacts


STORIES = {
    "seed-000": Story(
        name="000",
        about="an audit of a script; Phi-3-mini; the GPU is not named, an A10 is assumed; 5,000 rows of 155 tokens",
        gpu="a10",
        model="phi-3-mini",
        rows=data(rows=5_000, mean=155, longest=518, limit=518),
    ),
    "seed-001": Story(
        name="001",
        about="TinyLlama-1.1B on an RTX 2080 Ti; 171 rows, of 166 tokens as assumed",
        gpu="rtx-2080-ti",
        model="tinyllama-1.1b",
        rows=data(rows=154, held_out=17),
    ),
    "seed-002": Story(
        name="002",
        about="a GPU that idles, an RTX 4090; 25 rows; the model is not named, TinyLlama-1.1B is assumed",
        gpu="rtx-4090",
        model="tinyllama-1.1b",
        rows=data(rows=25),
    ),
    "seed-003": Story(
        name="003",
        about="Mistral-7B on an A10; rows that fill 1,024 tokens",
        gpu="a10",
        model="mistral-7b",
        rows=data(rows=10_000, mean=900, longest=1024, limit=1024),
    ),
}
"""Story 004 trains a GritLM-7B, whose pairs these facts do not describe: its rows are not modelled."""
OTHERS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "seed-000": (
        ("attention is 50 to 60 % of the training time", "1.9 % of a forward's operations at 1,024 tokens (Mistral-7B)",
         "computed, tuning.md"),
        ("the GPU is busy 90 % of the time, to stay above 85 %", "the alert `gpu-idle` is below 85 %", "monitoring.md"),
        ("fused optimiser, 1 minute of work; workers 5; flash-attn and compiling 1 to 2 hours each",
         "1 minute, 1, 120 (its compile to the end takes longer), 15", "phases of `loradock plan`"),
    ),
    "seed-001": (
        ("loading 10 s to 8 s, 15 % faster, 20 % less host memory", "before, peak and after are in a run's record",
         "`loading_memory` in run.json"),
        ("checkpointing is 20 % less memory, 5 % slower", "37 % more operations of a layer that is recomputed",
         "computed, tuning.md"),
        ("fused optimiser 10 % faster", "all around a step's passes takes the host 0.9 ms of some 30",
         "measured, bench/results/host/host.md"),
        ("pinned memory 5 %, unused columns 2 %, no sorting by length 3 %", "part of the loader; no sorting at all",
         "not measured apart"),
        ("emptying the GPU's cache each 10th step is 5 %", "never in the loop", "by construction"),
        ("evaluations 25 % of the time to 10 %, all cadences 20 %", "evaluations are planned for a tenth at most",
         "arithmetic, plan/knobs/cadence.py"),
        ("float16 10 % faster on old GPUs", "decided by the GPU's architecture", "not measured"),
        ("CPU offload: half the memory, 15 % slower", "`train.cpu_offload`, where nothing else fits", "many-gpus.md"),
        ("DeepSpeed 20 % faster, 30 % less memory", "`train.parallel` is for models that do not fit one GPU",
         "many-gpus-deepspeed.md"),
        ("6 min 15 s, 3:10, 2:20, 2:05; 0.18, 0.35, 0.48, 0.53 steps/s", "ratios 1.94, 2.67, 2.94: see the rows above",
         "modelled"),
    ),
    "seed-002": (
        ("tokenising a row takes 200 ms, the GPU 50, the transfer 30; idle 83 %",
         "rows are tokenised once, before training: 472,163 tokens a CPU-second", "measured, bench/results/prepare.md"),
        ("3.6 steps/s to 15 .. 20, then to 30 .. 40; 23 minutes to 5, then 2.5", "see the rows above", "modelled"),
        ("GPU busy 15 .. 20 % to 80 .. 95 %, to 95 .. 100 %", "samples and the report say it of a run",
         "monitoring.md"),
    ),
    "seed-003": (
        ("pre-tokenising: 10 to 15x hoped for, 0 % found", "agrees: a plan's loader keeps up with 2 of 8 CPUs",
         "arithmetic, `loradock plan`"),
        ("no checkpointing: 2 to 3x hoped for, out of memory", "see the row above", "modelled"),
        ("half the length is a fourth of the operations", "of attention alone, 1.9 % of a forward",
         "computed, tuning.md"),
        ("22 % of the GPU to 45 .. 50 %", "131 ms of host time a micro-step in TRL, 30 in the fast engine",
         "measured, bench/results/host/host.md"),
        ("600 GB/s, 31.2 TFLOP/s in float16 of an A10", "600 GB/s; 125 TFLOP/s is the maker's figure, half assumed",
         "plan/gpus.json"),
        ("53 % cheaper", "the ratio of the times: 1 - 1/2.11", "arithmetic"),
        ("nodes differ by less than 5 %", "the alert `straggler` is above 5 %", "monitoring.md"),
    ),
    "seed-004": (
        ("data loading 20 to 40 % faster", "texts are cut by characters, then tokenised once", "not measured apart"),
        ("forward 15 to 25 %, all together 25 to 50 % faster",
         "1.25 and 1.81x over cached losses of sentence-transformers", "measured on CPUs, bench/results/contrastive"),
        ("10 to 20 % less memory by checkpointing", "`loradock plan --preset gritlm-7b` says it by component",
         "modelled on request"),
        ("the GPU to be busy above 85 %", "the alert `gpu-idle`", "monitoring.md"),
    ),
}  # fmt: skip


def context(preset: str) -> Context:
    """The preset of a story, planned on its GPU for its model."""
    story = STORIES[preset]
    asked = load(None, preset=preset, needs_inputs=False).config
    plan = planner.make(asked, facts=facts(preset), model=models()[story.model], data=story.rows)
    return context_of(plan, asked, facts=facts(preset))


def facts(preset: str) -> Facts:
    """The story's machine, described."""
    return planner.machine_with(STORIES[preset].gpu)


def modelled(baseline: Context, settings: tuple[str, ...]) -> tuple[str, str]:
    """Times as fast with these settings, or why the plan refuses them; and how that is known."""
    try:
        after = changed(baseline, settings)
    except LoradockError as refused:
        return f"refused: {refused.problems[0].what if refused.problems else refused.what}", "the plan"
    if not fits(after):
        need, have = after.plan.memory_bytes["total"] / 2**30, after.memory_bytes / 2**30
        return f"out of memory: needs {need:.1f} GiB of {have:.1f}", "modelled"
    found = gain(baseline, after)
    if found.is_range:
        return f"{found.low:.2f} .. {found.high:.2f}x", "a range that others claim; no figure of ours"
    shorter = baseline.data.mean_tokens / after.data.mean_tokens
    samples = f", {found.low * shorter:.2f}x the samples" if shorter > VISIBLE else ""
    return f"{found.low:.2f}x{samples}", "modelled"


def memory(baseline: Context, *settings: str) -> str:
    """What the plan expects with these settings."""
    need = changed(baseline, settings).plan.memory_bytes["total"] if settings else baseline.plan.memory_bytes["total"]
    return f"{need / 2**30:.1f} GiB"


def memory_rows() -> Iterator[tuple[str, str, str, str]]:
    """Figures of GPU memory, by the memory model."""
    small, large = context("seed-001"), context("seed-003")
    batch = "train.micro_batch=4"
    yield "001", "2.5 GB at batch 2, with checkpointing", memory(small), "modelled"
    yield "001", "3.2 GB at batch 4", memory(small, batch, "train.checkpointing=false"), "modelled"
    yield "001", "2.8 GB at batch 4 with checkpointing", memory(small, batch), "modelled"
    longest = ("data.max_length=512", "train.global_batch=8", "train.micro_batch=8")
    yield (
        "003",
        "5 GB at 1,024 tokens and batch 4 .. 20 GB at 512 and batch 8",
        (f"{memory(large)} .. {memory(large, *longest)}"),
        "modelled",
    )


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| story | what it is about |", "| --- | --- |"]
    lines += [f"| {story.name} | {story.about} |" for story in STORIES.values()]
    lines += ["| 004 | GritLM, embedding and generating together; its GPU is not named |", ""]
    lines += ["| story | the figure | here | how it is known |", "| --- | --- | --- | --- |"]
    table = sorted([*trial_rows(), *memory_rows()], key=lambda row: row[0])
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table), ""])


def trial_rows() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the stories' tables by the speed model, then their other figures."""
    for preset, rows in SEEDS.items():
        story, baseline = preset.removeprefix("seed-"), context(preset) if preset in STORIES else None
        for row in rows:
            unknown = f"`diagnose --preset {preset}` measures it", "not modelled"
            here, how = modelled(baseline, row.trial.settings) if baseline else unknown
            yield story, f"{row.trial.title}: {row.said}", here, how
        for claim, here, how in OTHERS[preset]:
            yield story, claim, here, how


if __name__ == "__main__":
    sys.stdout.write(page())
