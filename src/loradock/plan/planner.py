"""A plan is made: every knob in order, for a configuration, machine, model and data set. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, OutOfMemory
from loradock.facts import DESCRIBED, DataFacts, Facts, ModelFacts
from loradock.plan import gpu_table, pass_shape
from loradock.plan.context import Context
from loradock.plan.knobs import held_passes, knob, parallel
from loradock.plan.plan import KNOBS, Plan, draft

SHORTEST_TOKENS = 1024
"""Rows are not split to fit in memory below this."""


def require_samples(config: RunConfig, *, processes: int) -> None:
    """ConfigError where a step has fewer samples than the run has processes: some would never have anything to do."""
    key = config.batch_key
    samples = config.embedding.global_batch if config.objective_spec.embeds else config.train.global_batch
    if processes > samples:
        raise ConfigError(
            f"{processes} processes (GPUs times machines), and {key} is {samples}: "
            f"{processes - samples} of them would get no sample in a step",
            hint=f"{samples} GPUs at most, or --set {key}={processes}, which changes what is trained",
        )


def make(
    config: RunConfig, *, facts: Facts, model: ModelFacts, data: DataFacts, reasons: Mapping[str, str] | None = None
) -> Plan:
    """Ask every knob in order; raises ConfigError, EnvironmentUnfit or OutOfMemory where what was asked cannot be.

    `reasons` says by name why a value was asked for, where a person did not.
    """
    require_samples(config, processes=facts.world_size)
    context = decided(KNOBS, Context(config=config, facts=facts, model=model, data=data, plan=draft(())), reasons)
    plan = context.plan
    expected = context.expected_bytes(
        micro_batch=plan.micro_batch.value,
        checkpointing=plan.checkpointed_layers.value,
        optimizer=plan.optimizer.value,
        cached_layers=plan.cached_layers.value,
    )
    return Plan(**vars(plan), memory_bytes=held_passes.with_vectors(expected, context), model=model, data=data)


def fitting(
    config: RunConfig,
    *,
    facts: Facts,
    model: ModelFacts,
    data: DataFacts,
    at_length: Callable[[int], DataFacts],
    reasons: Mapping[str, str] | None = None,
) -> Plan:
    """As `make`; where `data.max_length` is free and its rows do not fit in memory, for shorter ones, each time half.

    `at_length` counts the rows at another longest length. Raises what `make` raises for the shortest.
    """
    texts = dict(reasons or {})
    while True:
        try:
            return make(config, facts=facts, model=model, data=data, reasons=texts)
        except OutOfMemory as error:
            shorter = max(SHORTEST_TOKENS, data.limit_tokens // 2)
            if config.data.max_length != "auto" or shorter >= data.limit_tokens:
                raise
            texts["max_length"] = f"longer samples do not fit in memory: {error.what}"
            previous, data = data.limit_tokens, at_length(shorter)
            if data.limit_tokens >= previous:  # texts to embed have lengths of their own
                raise


def decided(names: Iterable[str], context: Context, reasons: Mapping[str, str] | None = None) -> Context:
    """The context with these knobs decided besides those that are, one after another."""
    for name in names:
        decide = knob(name).decide
        if decide is None:
            raise LookupError(f"knobs/{name}.py decides nothing")
        decision = decide(context)
        if reasons and name in reasons:
            decision = replace(decision, why=reasons[name])
        context = replace(context, plan=draft((*context.plan.decisions, decision)))
    return context


def machine_with(gpu: str, *, count: int = 1, nodes: int = 1) -> Facts:
    """One of `nodes` machines with `count` GPUs of one short name (a10, h200) each, which need not be there.

    It has a process, 8 CPUs and 64 GiB for each GPU, and no flash-attn. UsageError for a GPU that is not in the table.
    """
    return Facts(
        platform=DESCRIBED,
        python=DESCRIBED,
        cpus=8 * count,
        memory_bytes=count * (64 << 30),
        in_container=True,
        gpus=(gpu_table.named(gpu).as_gpu(),) * count,
        world_size=count * nodes,
        local_world_size=count,
    )


def tokens_per_second(plan: Plan, config: RunConfig, *, facts: Facts) -> float:
    """Trained tokens a second of one process that the speed model expects of a plan for the fast engine.

    Only as good as its assumptions: see `speed`. To be compared with another such figure, not with a clock.
    """
    context = context_of(plan, config, facts=facts)
    seconds = pass_shape.step_seconds(
        context.fast_memory, context.shape, step_tokens=context.step_tokens, data=context.rows, rates=context.rates
    )
    return context.step_tokens / seconds


def host_bytes(plan: Plan, config: RunConfig, *, facts: Facts) -> int:
    """Bytes of host memory that each process needs for what does not live on its GPU; 0 where all of it does."""
    if not plan.cpu_offload.value:
        return 0
    return parallel.host_bytes(context_of(plan, config, facts=facts), mode=plan.parallel.value)


def context_of(plan: Plan, config: RunConfig, *, facts: Facts) -> Context:
    """What the knobs of a plan looked at."""
    return Context(config=config, facts=facts, model=plan.model, data=plan.data, plan=plan)
