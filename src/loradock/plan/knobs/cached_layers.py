"""How many layers keep their NF4 weights dense as well, so that nothing is dequantised for a product.

Frozen weights never change, so the products are the same bit for bit. The packed ones stay where they are.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.pass_shape import fitted
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

NO_GAIN_ON_CPU = "on a CPU no gain of dense copies was measured (bench/results/weight_cache), and they take memory"


def decide(context: Context) -> Decision[int]:
    """On a GPU as many as memory allows once activations are kept, which is worth several times more a byte."""
    setting, layers = context.config.model.cache_weights, context.model.layers
    obstacle = cache_obstacle(context)
    if setting != "auto" and setting > (0 if obstacle else layers):
        raise ConfigError(
            f"model.cache_weights is {setting}: {obstacle or f'{context.model.name} has {layers} layers'}",
            hint="--set model.cache_weights=auto",
        )
    if setting != "auto":
        return asked("cached_layers", setting)
    if obstacle:
        return Decision(name="cached_layers", value=0, why=obstacle)
    if not context.on_gpu:
        return Decision(name="cached_layers", value=0, why=NO_GAIN_ON_CPU)
    tokens = context.plan.micro_batch.value * context.row_tokens
    shape = fitted(context.fast_memory, tokens=tokens, limits=context.limits)
    count = shape.cached if shape else 0
    return Decision(name="cached_layers", value=count, why=_why(context, count))


def _why(context: Context, count: int) -> str:
    memory = context.fast_memory
    copies, bits = f"{8 * memory.bytes}-bit", f"{memory.dense_layer / 2**20:,.0f} MiB"
    if not count:
        return f"a {copies} copy of a layer takes {bits}, more than is left of the free memory"
    layers = "1 layer" if count == 1 else f"{count} layers"
    return f"keeps {copies} copies of {layers} in the free memory ({bits} each): less dequantisation, identical results"


def cache_obstacle(context: Context) -> str | None:
    """Why there is nothing to keep, or None."""
    if not context.engine.has_cached_layers:
        return "only the fast engine caches dense weights"
    if not context.config.model.storage.is_dequantised:
        return f"weights are {context.config.model.quantization}, not NF4: nothing is dequantised"
    return None


def propose(context: Context) -> tuple[Trial, ...]:
    """The counts of layers that the plan did not take."""
    plan = context.plan
    if not context.engine.has_cached_layers or not context.config.model.storage.is_dequantised:
        return ()
    layers, current = plan.model.layers, plan.cached_layers.value
    choices = {"all": layers, "none": 0} if context.on_gpu else {"none": 0}
    return tuple(
        Trial(
            name=f"weight-cache-{name}",
            title=f"dense weights of {count} of {layers} layers kept instead of {current}",
            settings=(f"model.cache_weights={count}",),
            cause="weights are dequantised for every product"
            if count
            else "dense weights take memory from activations",
            phase="passes",
            stability_risk="low" if count else "none",
        )
        for name, count in choices.items()
        if count != current
    )
