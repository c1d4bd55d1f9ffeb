"""Gradient accumulation: it follows from the global batch, the micro-batch and the number of processes."""

import math

from loradock.plan.context import Decision, Question


def decide(question: Question) -> Decision:
    """Micro-batches that a process runs for one optimiser step; packed, the mean over steps."""
    total, processes = question.config.train.global_batch, question.facts.world_size
    micro = question.decided["micro_batch"]
    if not question.decided["packing"]:
        passes = math.ceil(total / micro)
        each = math.ceil(passes / processes)
        why = f"{total} samples a step = {processes} process(es) x {each} micro-batch(es) of up to {micro}"
    else:
        budget_tokens = micro * question.data.limit_tokens
        tokens = total * question.data.mean_tokens
        passes = math.ceil(tokens / budget_tokens)
        why = f"{total} samples a step are about {tokens:,.0f} tokens, {budget_tokens:,} a pack"
    return Decision(name="accumulation", value=math.ceil(passes / processes), why=why)
