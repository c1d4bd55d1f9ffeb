"""How many samples (packed: how many times max_length tokens, the token budget) go through the device at once."""

from __future__ import annotations

from dataclasses import replace

from loradock.errors import OutOfMemory
from loradock.plan import obstacles
from loradock.plan.context import Decision, Question, asked


def decide(question: Question) -> Decision:
    """The most that fits in memory and still is of use; OutOfMemory where not even one row fits on a card."""
    wanted = question.config.train.micro_batch
    if wanted != "auto":
        return asked("micro_batch", wanted)
    return _decide_fast(question) if question.is_fast else _decide_trl(question)


def need(question: Question, rows: int) -> dict[str, int]:
    """Expected bytes by component for a micro-batch of `rows`."""
    decided = question.decided
    return question.expected_bytes(
        micro_batch=rows, checkpointing=decided["checkpointing"], optimizer=decided["optimizer"]
    )


def too_large(question: Question, expected: dict[str, int]) -> OutOfMemory:
    """The error for a model of which not even one row fits; shorter rows are a remedy only where the weights fit."""
    length = question.row_tokens
    needed, have = expected["total"] / 2**30, question.memory_bytes / 2**30
    card = f"{question.facts.gpu.name} has {have:.1f} GiB to plan with"
    weights = expected["base weights"] / 2**30
    if weights > have:
        return OutOfMemory(
            f"the base weights need about {weights:.1f} GiB, {card}",
            hint=f"--model with a smaller one, or {room(question)}",
        )
    mode = question.decided.get("parallel")
    if mode == "fsdp" and not question.decided["cpu_offload"]:
        remedy = "--set train.cpu_offload=true"
    elif mode == "ddp" and not obstacles.of_sharded(question.config, compute_dtype=question.decided["compute_dtype"]):
        remedy = "--set train.parallel=fsdp --set engine=auto"
    elif not question.decided["checkpointing"]:
        remedy = "--set train.checkpointing=true"
    elif question.config.model.cache_weights not in ("auto", 0):
        remedy = "--set model.cache_weights=auto"
    elif question.is_fast and fits_paged(question):
        remedy = "--set engine=trl, whose optimiser state can live outside the card"
    else:
        remedy = f"--set data.max_length={max(64, length // 2)}, a smaller model, or {room(question)}"
    return OutOfMemory(f"one row of {length} tokens needs about {needed:.1f} GiB, {card}", hint=remedy)


def room(question: Question) -> str:
    """Where there is more memory: several cards can share a model, one alone cannot."""
    return (
        "a larger card" if question.facts.world_size > 1 else "several cards (--gpus, loradock launch), or a larger one"
    )


def fits_paged(question: Question) -> bool:
    """Whether one row fits with the TRL engine, all layers checkpointed and the optimiser's state paged."""
    other = replace(question, decided={**question.decided, "engine": "trl"})
    paged = other.expected_bytes(micro_batch=1, checkpointing=True, optimizer="paged_adamw_8bit")
    return paged["total"] <= question.memory_bytes


def _decide_trl(question: Question) -> Decision:
    """The largest power of two that fits in memory, useful up to a token count where the device is busy."""
    length = question.row_tokens
    rows = 1 << (question.useful_rows.bit_length() - 1)
    while rows > 1 and need(question, rows)["total"] > question.memory_bytes:
        rows //= 2
    expected = need(question, rows)
    if question.on_gpu and expected["total"] > question.memory_bytes:
        raise too_large(question, expected)
    sizes = f"{expected['total'] / 2**30:.1f} of {question.memory_bytes / 2**30:.1f} GiB"
    return Decision(name="micro_batch", value=rows, why=f"{rows} x {length} tokens need about {sizes}")


def _decide_fast(question: Question) -> Decision:
    """The budget of the fastest shape that fits."""
    choice = question.fast_choice()
    if choice is None and question.on_gpu:
        wanted = question.config.train.checkpointing
        layers = question.model.layers if wanted == "auto" else question.asked_layers(wanted)
        cached = question.limits.cached or 0
        raise too_large(
            question,
            question.expected_bytes(micro_batch=1, checkpointing=layers, optimizer="adamw_fused", cached_layers=cached),
        )
    length, most = question.row_tokens, question.useful_rows
    if choice is None:
        return Decision(name="micro_batch", value=1, why=f"not even {length} tokens fit by the estimate")
    sizes = f"{choice.needed_bytes / 2**30:.1f} of {question.memory_bytes / 2**30:.1f} GiB"
    tokens = choice.shape.tokens
    why = f"{tokens:,} tokens a pass need about {sizes}; the fastest of 1 to {most} x {length} that fit"
    return Decision(name="micro_batch", value=choice.rows, why=why)
