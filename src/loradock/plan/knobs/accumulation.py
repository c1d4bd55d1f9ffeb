"""Gradient accumulation: it follows from the global batch, the micro-batch and the number of processes."""

import math

from loradock.plan.context import Context
from loradock.plan.plan import Decision


def decide(context: Context) -> Decision[int]:
    """Micro-batches that a process runs for one optimiser step; packed, the mean over steps."""
    total, processes = context.step_samples, context.facts.world_size
    micro = context.plan.micro_batch.value
    if not context.plan.packing.value:
        passes = math.ceil(total / micro)
        passes_each = math.ceil(passes / processes)
        why = f"{total} samples a step = {processes} process(es) x {passes_each} micro-batch(es) of up to {micro}"
    else:
        budget_tokens = micro * context.data.limit_tokens
        tokens = total * context.data.mean_tokens
        passes = math.ceil(tokens / budget_tokens)
        why = f"{total} samples a step are about {tokens:,.0f} tokens, in packs of up to {budget_tokens:,}"
    return Decision(name="accumulation", value=math.ceil(passes / processes), why=why)
