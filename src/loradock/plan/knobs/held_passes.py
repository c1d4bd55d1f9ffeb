"""How many passes of a contrastive step keep their activations until the loss of all is known; the others run twice.

All: `direct`. None: `cached` (GradCache, Gao et al. 2021). The bits are the same.
"""

from __future__ import annotations

from loradock.plan.context import Context, asked
from loradock.plan.memory import pairs
from loradock.plan.memory.base import of_memory
from loradock.plan.plan import NOT_APPLICABLE, Decision
from loradock.plan.trial import Trial

NAME = "held_passes"
ALL = "all"


def decide(context: Context) -> Decision[int | str]:
    """As many as fit beside one that is computed."""
    setting = context.config.embedding.passes
    if not context.config.objective_spec.embeds:
        return Decision(name=NAME, value=0, why=f"{NOT_APPLICABLE}objective {context.config.objective}")
    if setting != "auto":
        return asked(NAME, ALL if setting == "direct" else 0)
    passes = step_passes(context)
    expected = expected_bytes(context)
    need = vectors(context) + expected["total"]
    most = pairs.most_held(context.memory_bytes - need, expected["activations"], passes=passes)
    sizes = of_memory(need + expected["activations"] * max(0, most - (most == passes)), context.memory_bytes)
    if most == passes:
        return Decision(name=NAME, value=ALL, why=f"direct: all {passes} passes of a step fit, {sizes}")
    why = f"{most} of the {passes} passes of a step keep their activations, {sizes}; the others run forward twice"
    return Decision(name=NAME, value=most, why=why)


def step_passes(context: Context) -> int:
    """Passes over the documents of a full step, of one process."""
    by_shape = context.engine.plans_shapes
    return max(1, context.passes(context.shape.tokens) if by_shape else context.plan.accumulation.value)


def expected_bytes(context: Context) -> dict[str, int]:
    """Of a pass as planned, by component."""
    plan = context.plan
    return context.expected_bytes(
        micro_batch=plan.micro_batch.value,
        checkpointing=plan.checkpointed_layers.value,
        optimizer=plan.optimizer.value,
        cached_layers=plan.cached_layers.value,
    )


def vectors(context: Context) -> int:
    """Bytes of the vectors and scores of a step."""
    embedding = context.config.embedding
    return pairs.vector_bytes(context.model, queries=embedding.global_batch, negatives=embedding.negatives)


def run_twice(context: Context) -> float:
    """The share of a step's tokens that is run forward a second time."""
    config, passes_kept = context.config, context.plan.held_passes.value
    if not config.objective_spec.embeds or passes_kept == ALL:
        return 0.0
    documents = config.embedding.global_batch * (2 + config.embedding.negatives)
    return min(1.0, documents / context.step_samples) * (1 - min(1.0, int(passes_kept) / step_passes(context)))


def with_vectors(expected: dict[str, int], context: Context) -> dict[str, int]:
    """The expected bytes of a run by component, with what contrastive training adds."""
    if not context.config.objective_spec.embeds:
        return expected
    asked_for, passes = context.plan.held_passes.value, step_passes(context)
    passes_kept = passes - 1 if asked_for == ALL else min(int(asked_for), passes - 1)
    parts = {name: size for name, size in expected.items() if name != "total"}
    parts |= {"vectors and scores": vectors(context), "passes that stay": passes_kept * expected["activations"]}
    return {**parts, "total": sum(parts.values())}


def propose(context: Context) -> tuple[Trial, ...]:
    """The other way than now."""
    if not context.config.objective_spec.embeds:
        return ()
    is_direct = context.plan.held_passes.value == ALL
    name = "cached" if is_direct else "direct"
    trial = Trial(
        name=f"passes-{name}",
        title="documents embedded twice, keeping nothing" if is_direct else "documents embedded once, keeping all",
        settings=(f"embedding.passes={name}",),
        cause="passes that stay fill the memory" if is_direct else "documents are embedded twice",
        phase="passes",
        stability_risk="none" if is_direct else "moderate",
        is_remedy=not is_direct,
    )
    return (trial,)
