"""How many layers keep their NF4 weights dense as well, so that nothing is dequantised for a product.

Frozen weights never change, so the products are the same bit for bit. The packed ones stay where they are.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan.context import (
    CPU_CACHE_SHARE,
    Decision,
    Question,
    asked,
)
from loradock.plan.pass_shape import fitted


def decide(question: Question) -> Decision:
    """As many as memory allows once activations are kept, which is worth several times more a byte."""
    wanted, layers = question.config.model.cache_weights, question.model.layers
    obstacle = cache_obstacle(question)
    if wanted != "auto" and wanted > (0 if obstacle else layers):
        raise ConfigError(
            f"model.cache_weights is {wanted}: {obstacle or f'{question.model.name} has {layers} layers'}",
            hint="--set model.cache_weights=auto",
        )
    if wanted != "auto":
        return asked("cached_layers", wanted)
    if obstacle:
        return Decision(name="cached_layers", value=0, why=obstacle)
    tokens = question.decided["micro_batch"] * question.row_tokens
    shape = fitted(question.fast_memory, tokens=tokens, limits=question.limits)
    each = question.fast_memory.dense_layer / 2**20
    within = "what is left" if question.on_gpu else f"{CPU_CACHE_SHARE:.0%} of the memory"
    why = f"dense weights take {each:,.0f} MiB a layer of {within}; they spare dequantising, bit for bit the same"
    return Decision(name="cached_layers", value=shape.cached if shape else 0, why=why)


def cache_obstacle(question: Question) -> str | None:
    """Why there is nothing to keep, or None."""
    if not question.is_fast:
        return "only the fast engine keeps dense weights"
    if question.config.model.quantization != "nf4":
        return f"weights are {question.config.model.quantization}, not NF4: nothing is dequantised"
    return None
