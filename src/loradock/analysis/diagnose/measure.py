"""What one run of a configuration came to: seconds by phase, speed, memory, loss. Read from what the run recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from loradock.analysis import step_time
from loradock.analysis.step_time import Breakdown
from loradock.training.run_dir import record

EVENTS = {"evaluation": "eval", "saving": "checkpoint"}
"""What happens between steps, and the kind of its metric lines."""
Kind = Literal["out of memory", "failed", "too slow"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run that could be measured, warm-up left out.

    `phases`: seconds of an optimiser step by phase, evaluation and saving spread over the steps of their cadence.
    `event_seconds`: of one evaluation and of one checkpoint. `memory_bytes`: the most that the GPU's allocator had
    reserved; on a CPU the process's largest resident set. `padding_share` is of all token slots, `loss` the last one,
    in nats. `total_steps` is what the whole run would take, `lost_tokens` what the cut at max_length costs an epoch of
    `all_tokens`. `expected` is the speed model's tokens a second, None where it has none; `busy_share` the GPU's, None
    where nothing was reported.
    """

    phases: Mapping[str, float]
    tokens: float
    samples: float
    steps: int
    event_seconds: Mapping[str, float]
    memory_bytes: int
    padding_share: float
    loss: float
    total_steps: int
    lost_tokens: int
    all_tokens: int
    cut_rows: int
    device: str
    engine: str
    micro_batch: int
    expected: float | None = None
    busy_share: float | None = None

    @property
    def breakdown(self) -> Breakdown:
        """The time of a step by phase."""
        return Breakdown(phases=self.phases, tokens=self.tokens, samples=self.samples, steps=self.steps)

    @property
    def seconds(self) -> float:
        """Of a step, all in all."""
        return self.breakdown.seconds

    @property
    def run_seconds(self) -> float:
        """Of the whole run's steps."""
        return self.total_steps * self.seconds

    def faster_than(self, baseline: Measured) -> float:
        """The logarithm of how many times more real tokens a second this one trains."""
        return math.log(self.breakdown.tokens_per_second / baseline.breakdown.tokens_per_second)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A run that came to nothing, in its own words."""

    kind: Kind
    words: str
    exit_code: int


Outcome = Measured | Failed


def read(
    directory: Path, *, cadence: Mapping[str, int], warmup_steps: int, event_seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The figures of `Measured` that a run directory tells; `event_seconds` stand in for events that did not happen.

    ValueError where no step was measured.
    """
    train = record.metrics(directory, "train")
    happened = {name: record.metrics(directory, kind) for name, kind in EVENTS.items()}
    for name, lines in happened.items():
        if not lines and name in event_seconds:
            lines.append({"seconds": event_seconds[name]})
    breakdown = step_time.of(
        train,
        evaluations=happened["evaluation"],
        checkpoints=happened["saving"],
        cadence={name: steps or 1 for name, steps in cadence.items()},
        warmup_steps=warmup_steps,
    )
    if breakdown is None:
        raise ValueError("no step was measured")
    measured = train[warmup_steps:]
    slots = sum(line["tokens"] / max(1e-9, 1 - line["padding_share"]) for line in measured)
    return {
        "phases": breakdown.phases,
        "tokens": breakdown.tokens,
        "samples": breakdown.samples,
        "steps": breakdown.steps,
        "event_seconds": {
            name: step_time.mean([line["seconds"] for line in lines]) for name, lines in happened.items()
        },
        "memory_bytes": max(line["memory_bytes"] for line in train),
        "padding_share": max(0.0, 1 - sum(line["tokens"] for line in measured) / slots),
        "loss": train[-1]["loss"],
        "busy_share": busy_share(directory / "monitor.jsonl"),
    }


def busy_share(file: Path) -> float | None:
    """How much of the time the GPU worked, by the monitor's samples behind the first step; None without any."""
    if not file.exists():
        return None
    shares: list[float] = []
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        value = line.get("utilization") if isinstance(line, dict) and line.get("step") else None
        if isinstance(value, (int, float)):
            shares.append(float(value))
    return step_time.mean(shares) if shares else None


def mean(outcomes: Sequence[Measured]) -> Measured:
    """One for all of them: means of what differs from run to run, the most memory."""
    first = asdict(outcomes[0])
    shares = [outcome.busy_share for outcome in outcomes if outcome.busy_share is not None]
    averaged = {
        name: step_time.mean([getattr(outcome, name) for outcome in outcomes])
        for name in ("tokens", "samples", "padding_share", "loss")
    }
    return Measured(
        **{
            **first,
            **averaged,
            "phases": means([outcome.phases for outcome in outcomes]),
            "event_seconds": means([outcome.event_seconds for outcome in outcomes]),
            "memory_bytes": max(outcome.memory_bytes for outcome in outcomes),
            "busy_share": step_time.mean(shares) if shares else None,
        }
    )


def means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each entry."""
    return {name: step_time.mean([table[name] for table in tables]) for name in tables[0]}


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The JSON-able form."""
    return {"measured" if isinstance(outcome, Measured) else "failed": asdict(outcome)}


def from_dict(values: Mapping[str, Any]) -> Outcome:
    """What `as_dict` made. KeyError or TypeError for anything else."""
    if "failed" in values:
        return Failed(**cast("dict[str, Any]", values["failed"]))
    return Measured(**values["measured"])
