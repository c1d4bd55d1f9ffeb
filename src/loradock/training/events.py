"""What training tells while it runs: a type for each event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loradock.plan.plan import Decision

EARLY_STOP = "early stop"
"""Of an outcome: evaluations that no longer improved ended the run."""


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """An optimiser step ended. Emitted for each step, without reading anything back from the device."""

    step: int


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Metrics over the `steps` since the last such line: fewer before a checkpoint, at the end and after a resume.

    `loss` is the mean over supervised tokens, in nats; `tokens` are real ones (no padding), summed over all
    processes; `memory_bytes` is the peak that the allocator reserved on this process's GPU (0 on a CPU).
    `epoch_seconds`: of an epoch at this pace, evaluations and saves aside. `phases`: seconds of this process by what
    it did (see `meter`); `logging` is that of the line before, not in `seconds`. `rank_seconds`: of a step, what each
    process took for its own part, without waiting for the others and as if all had as many tokens; its keys are
    `RANK@HOST`. None for one process, and where the engine cannot tell. `parts`: of the loss, by name, where the
    objective has several. `experts`: how tokens spread over those of a mixture, by name (`expert_load.metrics`).
    """

    step: int
    steps: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    padding_share: float
    tokens_per_second: float
    samples_per_second: float
    seconds: float
    steps_per_second: float
    epoch_seconds: float
    memory_bytes: int
    phases: dict[str, float]
    rank_seconds: dict[str, float] | None = None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    experts: dict[str, float] = field(default_factory=dict[str, float])

    def line(self) -> dict[str, Any]:
        """As metrics.jsonl and the trackers have it: the loss's parts and the experts' load among the others."""
        whole = asdict(self)
        parts, experts = whole.pop("parts"), whole.pop("experts")
        return whole | parts | experts


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Mean loss over every supervised token of the validation part, in nats; `metrics` are the objective's besides.

    `losses` are those of the sets by name, where `data.validation` names several.
    """

    step: int
    loss: float
    metrics: dict[str, float]
    losses: dict[str, float]
    supervised_tokens: int
    seconds: float

    def judged_by(self, metric: str) -> float:
        """What is compared between evaluations, the lower the better."""
        if metric == "loss":
            return self.loss
        return -self.metrics[metric] if metric.endswith(("accuracy", "margin")) else self.metrics[metric]

    def line(self) -> dict[str, Any]:
        """As metrics.jsonl and the trackers have it: the objective's metrics and `loss_NAME` among the others."""
        whole = asdict(self)
        by_name = {f"loss_{name}": loss for name, loss in whole.pop("losses").items()}
        return {"step": self.step, "loss": self.loss, **whole.pop("metrics"), **by_name, **whole}


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What goes on between the steps: `training`, `evaluating` or `saving`, after this step."""

    what: str
    step: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint was committed. The steps waited `seconds` for it; `commit_seconds` after its begin it was there."""

    step: int
    directory: Path
    seconds: float
    commit_seconds: float


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """The dtypes that really came out, once the first step was made: part -> dtype."""

    found: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """Out of GPU memory: the run went back to `step` and goes on with less of what a decision had given it.

    `decision` is `cached_layers` or `micro_batch`. The global batch stays as it was.
    """

    step: int
    decision: str
    value: int
    before: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a backend decided or found out once it had the model: each with its reason."""

    decisions: tuple[Decision[Any], ...]


Event = StepDone | StepResult | EvalResult | Doing | Saved | Dtypes | Shrunk | Decided

Emit = Callable[[Event], None]
