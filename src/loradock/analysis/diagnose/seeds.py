"""The tables of the notes behind the presets `seed-*`: their rows as trials, with what each note says of them.

`loradock diagnose --preset seed-003` shows that beside what comes out here.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.plan.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a note: a trial, and what the note says came of it there."""

    trial: Trial
    said: str


def row(name: str, title: str, *settings: str, cause: str, said: str, phase: str = "passes", price: str = "") -> Row:
    """One row."""
    return Row(trial=Trial(name=name, title=title, settings=settings, cause=cause, phase=phase, price=price), said=said)


COMPILE = "train.compile=default"
NEAREST = "the note's mode, reduce-overhead, records a CUDA graph for each length and cannot accumulate gradients"
"""Why its rows are compiled in the mode that comes nearest."""
WINDOWS = "windows of a row do not see each other; the note alternates 512 and 1024 tokens"
FLASH = "model.attention=flash_attention_2"
SEEDS: dict[str, tuple[Row, ...]] = {
    "seed-000": (
        row("flash", "flash attention 2", FLASH, cause="the attention kernel", said="1.5 .. 2.0x hoped for"),
        row("workers-4", "4 data workers", "train.workers=4", cause="waiting for data", phase="data",
            said="1.1 .. 1.2x hoped for"),
        row("compile", "decoder layers compiled", COMPILE, cause="layers run operator by operator",
            said="1.15 .. 1.25x hoped for", price=NEAREST),
        row("fused", "fused AdamW", "train.optimizer=adamw_fused", cause="the plain optimiser", phase="optimizer",
            said="1.05 .. 1.1x hoped for"),
        row("packing", "rows packed", "train.packing=true", cause="padding", said="1.1 .. 1.3x hoped for"),
        row("conservative", "workers and fused AdamW", "train.workers=4", "train.optimizer=adamw_fused",
            cause="several small things", said="1.15 .. 1.3x hoped for"),
        row("aggressive", "all but packing", "train.workers=4", "train.optimizer=adamw_fused", FLASH, COMPILE,
            cause="several things", said="2.0 .. 3.0x hoped for", price=NEAREST),
    ),
    "seed-001": (
        row("batch-4", "micro-batch 4 instead of 2", "train.micro_batch=4", cause="the micro-batch is too small",
            said="1.94x measured"),
        row("flash", "micro-batch 4, flash attention 2", "train.micro_batch=4", FLASH,
            cause="micro-batch and attention kernel", said="2.67x measured"),
        row("compiled", "micro-batch 4, flash attention 2, compiled", "train.micro_batch=4", FLASH, COMPILE,
            cause="micro-batch, attention kernel and eager layers", said="2.94x measured", price=NEAREST),
        row("cadence", "evaluation each 20 steps, checkpoints each 100, metrics each 5", "evaluation.every=20",
            "checkpoints.every=100", "logging.every=5", cause="evaluating, saving and writing too often",
            phase="evaluation", said="1.2x hoped for"),
    ),
    "seed-002": (
        row("workers-4", "4 data workers", "train.workers=4", cause="waiting for data", phase="data",
            said="4.0 .. 5.0x hoped for"),
        row("bfloat16", "products in bfloat16", "model.compute_dtype=bfloat16", cause="products in float32",
            said="2.0x hoped for", price="products are rounded to bfloat16"),
        row("compile", "decoder layers compiled", COMPILE, cause="layers run operator by operator",
            said="1.5 .. 2.0x hoped for"),
        row("batch-4", "4 rows a step in one pass", "train.global_batch=4", "train.micro_batch=4",
            cause="one row a pass", said="no figure", price="a fourth of the steps"),
        row("synthetic", "the first row again and again", "data.repeat_first=true", cause="waiting for data",
            phase="data", said="idle 83 % of the time", price="nothing is learned"),
    ),
    "seed-003": (
        row("optimizer", "plain AdamW", "train.optimizer=adamw", cause="the paged optimiser", phase="optimizer",
            said="0.98x measured"),
        row("rank-8", "LoRA rank 8 instead of 16", "lora.rank=8", "lora.alpha=16", cause="the rank",
            said="0.97x measured", price="half the trainable weights"),
        row("length-512", "rows of at most 512 tokens", "data.max_length=512", cause="rows are long",
            said="1.88x measured", price="tokens beyond 512 are lost"),
        row("length-512-batch-8", "512 tokens, batch 8", "data.max_length=512", "train.global_batch=8",
            "train.micro_batch=8", cause="rows are long and passes small", said="2.11x measured",
            price="tokens beyond 512 are lost"),
        row("whole-weights", "unquantised base weights instead of 4 bits", "model.quantization=none",
            cause="weights are dequantised for every product", said="1.13x measured", price="four times the memory"),
        row("workers-8", "8 data workers instead of 4", "train.workers=8", cause="waiting for data", phase="data",
            said="0.99x measured"),
        row("packing", "rows packed instead of padded", "train.packing=true", cause="padding", said="not tried"),
        row("length-512-packed", "512 tokens, rows packed", "data.max_length=512", "train.packing=true",
            cause="rows are long, and of mixed lengths", said="not tried", price="tokens beyond 512 are lost"),
        row("mixed-lengths", "at most 512 tokens, longer rows split", "data.max_length=512", "data.long_rows=split",
            cause="rows are long", said="1.7x hoped for", price=WINDOWS),
        row("no-checkpointing", "no layer recomputed", "train.checkpointing=false",
            cause="layers are recomputed", said="out of memory"),
    ),
    "seed-004": (
        row("workers-4", "4 data workers", "train.workers=4", cause="waiting for data", phase="data",
            said="1.2 .. 1.4x hoped for"),
        row("engine-fast", "the fast engine instead of the peft backend", "engine=auto", "model.attention=auto",
            cause="the model's own forward", said="1.15 .. 1.25x hoped for, of other changes to the forward"),
        row("checkpointing", "gradient checkpointing", "train.checkpointing=true", cause="activations fill the memory",
            said="10 .. 20 % less memory hoped for", price="layers are computed twice"),
        row("sdpa", "torch's attention kernels instead of eager attention", "model.attention=sdpa",
            cause="the attention kernel", said="no figure"),
        row("compile", "decoder layers compiled", COMPILE, cause="layers run operator by operator",
            said="no figure; off for QLoRA", price="compiled once for each kind of attention"),
        row("direct", "documents embedded once, keeping their activations", "embedding.passes=direct",
            cause="documents are embedded twice", said="not tried", price="the memory of a whole step"),
        row("all", "workers, torch's attention and compiled layers", "train.workers=4", "model.attention=sdpa", COMPILE,
            cause="several things", said="1.25 .. 1.5x hoped for", price="compiled once for each kind of attention"),
    ),
}  # fmt: skip


def trials_of(preset: str | None) -> tuple[Trial, ...] | None:
    """The rows of a note as trials; None for any other preset."""
    return tuple(seed.trial for seed in SEEDS[preset]) if preset in SEEDS else None


def published(preset: str | None) -> dict[str, str]:
    """What the note says of each row, by the name of its trial."""
    return {seed.trial.name: seed.said for seed in SEEDS.get(preset or "", ())}
