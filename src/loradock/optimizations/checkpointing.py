"""Gradient checkpointing: recompute activations in backward instead of keeping them (non-reentrant)."""

from loradock.optimizations.base import GPU_ROWS, Decision, Question, asked


def decide(question: Question) -> Decision:
    """Off while a useful micro-batch fits without it, because it costs about a third more compute."""
    wanted = question.config.train.checkpointing
    if wanted != "auto":
        return asked("checkpointing", wanted)
    micro = question.config.train.micro_batch
    rows = micro if micro != "auto" else min(GPU_ROWS, question.useful_rows)
    need = question.expected_bytes(micro_batch=rows, checkpointing=False, optimizer="adamw_fused")["total"]
    have = question.memory_bytes
    why = f"{rows} x {question.row_tokens} tokens without it needs about {need / 2**30:.1f} GiB of {have / 2**30:.1f}"
    return Decision(name="checkpointing", value=need > have, why=why)
