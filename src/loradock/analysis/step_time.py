"""Where the time of a run's steps went, from its metric lines: seconds of a step by phase. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

STEP_PHASES = ("data", "passes", "optimizer")
"""What a metric line's seconds are made of, as `training.meter` names it; what is left over is `other`."""
BETWEEN = ("logging", "evaluation", "saving")
"""What happens between steps, at intervals."""
PHASES = (*STEP_PHASES, "other", *BETWEEN)


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Mean seconds of an optimiser step by phase, what happens now and then spread over the steps of its cadence.

    `tokens` (real ones) and `samples` of a step; `steps` is how many were counted.
    """

    phases: Mapping[str, float]
    tokens: float
    samples: float
    steps: int

    @property
    def seconds(self) -> float:
        """Seconds of a step, all in all."""
        return sum(self.phases.values())

    @property
    def tokens_per_second(self) -> float:
        """Real tokens a second, all in all."""
        return self.tokens / self.seconds

    @property
    def samples_per_second(self) -> float:
        """Samples a second, all in all."""
        return self.samples / self.seconds

    def share(self, phase: str) -> float:
        """Of the whole time."""
        return self.phases[phase] / self.seconds


def of(
    train: Sequence[Mapping[str, Any]],
    *,
    evaluations: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[Mapping[str, Any]],
    cadence: Mapping[str, int],
    warmup_steps: int,
) -> Breakdown | None:
    """The breakdown of a run by its metric lines; None where no line lies whole behind the first `warmup_steps` steps.

    `cadence`: steps between metric lines (`log`), evaluations (`evaluate`, 0 for none) and checkpoints (`save`).
    """
    first = train[0]["step"] - 1 if train else 0
    spans = list(zip([first, *(line["step"] for line in train)], train, strict=False))
    counted = [(line["step"] - previous, line) for previous, line in spans if previous >= warmup_steps]
    steps = sum(count for count, _ in counted)
    if not steps:
        return None
    phases = {name: sum(line["phases"].get(name, 0.0) for _, line in counted) / steps for name in STEP_PHASES}
    seconds = sum(line["seconds"] for _, line in counted) / steps
    phases["other"] = max(0.0, seconds - sum(phases.values()))
    written = [line["phases"]["logging"] for previous, line in pairwise_lines(train) if previous >= warmup_steps]
    between = {"logging": (written, "log"), "evaluation": (of_each(evaluations), "evaluate")}
    between["saving"] = (of_each(checkpoints), "save")
    phases |= {name: mean(values) / max(1, cadence[interval]) for name, (values, interval) in between.items()}
    return Breakdown(
        phases=phases,
        tokens=sum(line["tokens"] for _, line in counted) / steps,
        samples=sum(line["samples_per_second"] * line["seconds"] for _, line in counted) / steps,
        steps=steps,
    )


def pairwise_lines(train: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Each line that says what the one before it took to write, with the step of that one."""
    return [(previous["step"], line) for previous, line in pairwise(train) if "logging" in line["phases"]]


def of_each(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each evaluation or checkpoint."""
    return [line["seconds"] for line in lines]


def mean(values: Sequence[float]) -> float:
    """Zero where there is nothing."""
    return sum(values) / len(values) if values else 0.0
