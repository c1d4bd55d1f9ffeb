"""The Plan: every decision of a run with its reason, and the bytes expected. Pure: it never touches the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError
from loradock.facts import DataFacts, Facts, ModelFacts
from loradock.plan import gpu_table, pass_shape
from loradock.plan.context import Decision, Question
from loradock.plan.knobs import DECISIONS
from loradock.plan.memory.fast import Shape

HELD = {
    "device": ("device",),
    "engine": ("engine",),
    "compute_dtype": ("model", "compute_dtype"),
    "attention": ("model", "attention"),
    "packing": ("train", "packing"),
    "optimizer": ("train", "optimizer"),
    "micro_batch": ("train", "micro_batch"),
    "tf32": ("train", "tf32"),
}
"""Decisions that a continued run keeps, and where the configuration asks for each: another card, or less memory free,
must not change what is computed. How much is computed again, or kept dense, changes nothing, and is decided anew."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do. `memory_bytes` is by component with `total` last; `value(name)` is what was decided."""

    decisions: tuple[Decision, ...]
    memory_bytes: dict[str, int]
    model: ModelFacts
    data: DataFacts

    def value(self, name: str) -> Any:
        """The value decided under this name."""
        return next(decision.value for decision in self.decisions if decision.name == name)

    def with_value(self, name: str, value: Any, *, why: str) -> Plan:
        """The plan with one decision taken otherwise."""
        other = Decision(name=name, value=value, why=why)
        return replace(self, decisions=tuple(other if each.name == name else each for each in self.decisions))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form for the run record; the model's list of layers is left out."""
        model = {key: value for key, value in asdict(self.model).items() if key not in ("linears", "targets")}
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "memory_bytes": self.memory_bytes,
            "model": {**model, "linears": len(self.model.linears), "targets": len(self.model.targets)},
            "data": asdict(self.data),
        }


def require_samples(config: RunConfig, *, processes: int) -> None:
    """ConfigError where a step has fewer samples than the run has processes: some would never have anything to do."""
    samples = config.train.global_batch
    if processes > samples:
        raise ConfigError(
            f"{processes} processes (GPUs times machines), and train.global_batch is {samples}: a step has no sample "
            f"for {processes - samples} of them",
            hint=f"{samples} GPUs at most, or --set train.global_batch={processes}, which changes what is trained",
        )


def make(
    config: RunConfig, *, facts: Facts, model: ModelFacts, data: DataFacts, reasons: Mapping[str, str] | None = None
) -> Plan:
    """Ask every decision in order; raises ConfigError, EnvironmentUnfit or OutOfMemory where what was asked cannot be.

    `reasons` says by name why a value was asked for, where a person did not.
    """
    require_samples(config, processes=facts.world_size)
    decided: dict[str, Any] = {}
    decisions: list[Decision] = []
    question = Question(config=config, facts=facts, model=model, data=data, decided=decided)
    for decide in DECISIONS:
        decision = decide(question)
        if reasons and decision.name in reasons:
            decision = replace(decision, why=reasons[decision.name])
        decisions.append(decision)
        decided[decision.name] = decision.value
    expected = question.expected_bytes(
        micro_batch=decided["micro_batch"],
        checkpointing=decided["checkpointed_layers"],
        optimizer=decided["optimizer"],
        cached_layers=decided["cached_layers"],
    )
    return Plan(decisions=tuple(decisions), memory_bytes=expected, model=model, data=data)


def on_card(config: RunConfig, *, card: str, model: ModelFacts, data: DataFacts, count: int = 1) -> Plan:
    """The plan for a machine with `count` cards of this short name (a10, h200), which need not be there.

    The machine is taken to have 8 CPUs and 64 GiB a card, and no flash-attn. UsageError for a card that is not in the
    table, and what `make` raises.
    """
    return make(config, facts=machine_with(card, count=count), model=model, data=data)


def machine_with(card: str, *, count: int = 1, nodes: int = 1) -> Facts:
    """One of `nodes` machines with `count` cards of one name each, and a process for each card."""
    return Facts(
        platform="any",
        python="any",
        cpus=8 * count,
        memory_bytes=count * (64 << 30),
        in_container=True,
        gpus=(gpu_table.named(card).as_gpu(),) * count,
        world_size=count * nodes,
        local_world_size=count,
    )


def tokens_per_second(plan: Plan, config: RunConfig, *, facts: Facts) -> float:
    """Trained tokens a second of one process that the speed model expects of a plan for the fast engine.

    Only as good as its assumptions: see `speed`. To be compared with another such figure, not with a clock.
    """
    question = _question(plan, config, facts=facts)
    decided = question.decided
    shape = Shape(
        tokens=decided["micro_batch"] * question.row_tokens,
        checkpointed=decided["checkpointed_layers"],
        cached=decided["cached_layers"],
    )
    seconds = pass_shape.step_seconds(
        question.fast_memory, shape, step_tokens=question.step_tokens, data=question.rows, rates=question.rates
    )
    return question.step_tokens / seconds


def host_bytes(plan: Plan, config: RunConfig, *, facts: Facts) -> int:
    """Bytes of host memory that each process needs for what does not live on its card; 0 where all of it does."""
    if not plan.value("cpu_offload"):
        return 0
    return _question(plan, config, facts=facts).host_bytes(mode=plan.value("parallel"))


def _question(plan: Plan, config: RunConfig, *, facts: Facts) -> Question:
    decided = {decision.name: decision.value for decision in plan.decisions}
    return Question(config=config, facts=facts, model=plan.model, data=plan.data, decided=decided)


def shown(value: Any) -> str:
    """A decision's value as a person reads it."""
    if isinstance(value, dict):
        inner: dict[str, Any] = value
        return ", ".join(f"{key} {shown(part)}" for key, part in inner.items() if part is not None)
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
