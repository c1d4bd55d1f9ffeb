"""The Plan: what a run will do and why, knob by knob, and the bytes expected.

Each knob is an attribute with its type (`plan.micro_batch.value`, `.why`); `knobs/NAME.py` decides it. To add one: that
file, and its line here, below those that it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

from loradock.facts import DataFacts, ModelFacts

Value_co = TypeVar("Value_co", covariant=True)

HELD = {
    "device": ("device",),
    "engine": ("engine",),
    "compute_dtype": ("model", "compute_dtype"),
    "attention": ("model", "attention"),
    "max_length": ("data", "max_length"),
    "packing": ("train", "packing"),
    "optimizer": ("train", "optimizer"),
    "micro_batch": ("train", "micro_batch"),
    "tf32": ("train", "tf32"),
}
"""Decisions that a continued run keeps, and where the configuration asks for each: another GPU, or less memory free,
must not change what is computed. How much is recomputed, or kept dense, changes nothing, and is decided again."""


NOT_APPLICABLE = "not applicable: "
"""How the reason of a decision begins that does not concern the run."""


@dataclass(frozen=True, kw_only=True)
class Decision(Generic[Value_co]):
    """One thing that a run decided: its name, the value (JSON-able, or a dataclass of such), and the reason."""

    name: str
    value: Value_co
    why: str

    @property
    def is_shown(self) -> bool:
        """False for what the run has no use for, which stays in its record."""
        return not self.why.startswith(NOT_APPLICABLE)


@dataclass(frozen=True, kw_only=True)
class DataLoader:
    """How batches are loaded: worker processes of each rank, and the arguments of torch's DataLoader."""

    workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Steps between metric lines, evaluations (0: none) and checkpoints."""

    log: int
    evaluate: int
    save: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do. `memory_bytes` is by component, with `total` last."""

    device: Decision[str]
    compute_dtype: Decision[str]
    parallel: Decision[str]
    cpu_offload: Decision[bool]
    engine: Decision[str]
    attention: Decision[str]
    loss: Decision[str]
    kernels: Decision[str]
    template: Decision[str]
    max_length: Decision[int]
    packing: Decision[bool]
    checkpointing: Decision[bool]
    optimizer: Decision[str]
    micro_batch: Decision[int]
    checkpointed_layers: Decision[int]
    cached_layers: Decision[int]
    accumulation: Decision[int]
    held_passes: Decision[int | str]
    dataloader: Decision[DataLoader]
    threads: Decision[int]
    cuda_graphs: Decision[bool]
    tf32: Decision[bool]
    compile: Decision[str]
    steps: Decision[int]
    reference: Decision[str]
    cadence: Decision[Cadence]
    memory_bytes: dict[str, int]
    model: ModelFacts
    data: DataFacts

    @property
    def decisions(self) -> tuple[Decision[Any], ...]:
        """All that is decided, in order."""
        return tuple(vars(self)[name] for name in KNOBS if name in vars(self))

    def with_value(self, name: str, value: Any, *, why: str) -> Plan:
        """The plan with one decision taken otherwise."""
        if name not in KNOBS:
            raise KeyError(name)
        return replace(self, **{name: Decision(name=name, value=value, why=why)})

    def held(self) -> dict[str, Any]:
        """The values that a continued run keeps, by name."""
        return {name: vars(self)[name].value for name in HELD}

    def supposing(self, **values: Any) -> Plan:
        """A draft with these values in place of what was decided, or not yet decided."""
        supposed = [Decision(name=name, value=value, why="supposed") for name, value in values.items()]
        return draft((*self.decisions, *supposed))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form for the run record; of the model's lists of layers and experts it has the lengths."""
        lists = ("linears", "targets", "experts", "expert_targets")
        model = {key: value for key, value in asdict(self.model).items() if key not in lists}
        counts = {key: len(getattr(self.model, key)) for key in lists}
        counts |= {"experts_without_adapter": self.model.experts_without_adapter}
        return {
            "decisions": [asdict(decision) for decision in self.decisions],
            "memory_bytes": self.memory_bytes,
            "model": {**model, **counts},
            "data": asdict(self.data),
        }


KNOBS = tuple(field.name for field in fields(Plan) if str(field.type).startswith("Decision["))
"""The names of all decisions, in the order in which they are taken."""


def draft(decisions: Iterable[Decision[Any]]) -> Plan:
    """A plan of which these decisions alone are taken; the last of a name counts. Any other attribute is missing."""
    plan = object.__new__(Plan)
    for decision in decisions:
        object.__setattr__(plan, decision.name, decision)
    return plan


def shown(value: Any) -> str:
    """A decision's value as a person reads it."""
    if is_dataclass(value) and not isinstance(value, type):
        return shown(asdict(value))
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        return ", ".join(f"{key} {shown(part)}" for key, part in parts.items() if part is not None)
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
