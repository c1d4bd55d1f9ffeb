"""Stacked bars: where a run's time and memory went, as parts with their shares. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loradock.analysis import step_time
from loradock.analysis.report.html.differences import timings
from loradock.analysis.report.html.runs import Line, Run, number, numbers
from loradock.analysis.step_time import PHASES, Breakdown
from loradock.text.amounts import duration_text, size_text

WARMUP_STEPS = 3
NEEDED = ("seconds", "tokens", "samples_per_second")
CADENCE = {"log": 1, "evaluate": 1, "save": 1}
WORDS = {
    "data": "waiting for data",
    "passes": "forward and backward",
    "optimizer": "optimiser",
    "other": "other",
    "logging": "logging",
    "evaluation": "evaluation",
    "saving": "saving",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar: where it begins and how wide it is, in per cent of the whole width; `slot` is its colour."""

    name: str
    text: str
    slot: int
    start: float
    width: float

    @property
    def share(self) -> str:
        """Its width as text."""
        return f"{self.width:.1f} %" if self.width >= 0.05 or not self.width else "< 0.1 %"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stacked bar; `total` is what it comes to."""

    label: str
    total: str
    parts: tuple[Part, ...]

    @property
    def description(self) -> str:
        """What a person is told who does not see it."""
        return f"{self.label}, {self.total}: " + ", ".join(f"{part.name} {part.share}" for part in self.parts)


def bar(label: str, sizes: Mapping[str, float], *, total: str, texts: Mapping[str, str], whole: float = 0.0) -> Bar:
    """A bar of these parts in order; `whole` is the size of the full width, by default their sum."""
    width = 100 / (whole or sum(sizes.values()) or 1.0)
    parts: list[Part] = []
    start = 0.0
    for slot, (name, size) in enumerate(sizes.items()):
        parts.append(Part(name=name, text=texts[name], slot=slot, start=start, width=size * width))
        start += size * width
    return Bar(label=label, total=total, parts=tuple(parts))


def phases(runs: Sequence[Run]) -> list[Bar]:
    """Of each run that tells it: seconds of a step by phase."""
    bars: list[Bar] = []
    for run in runs:
        if step := step_of(run):
            texts = {WORDS[name]: duration_text(step.phases[name]) for name in PHASES}
            sizes = {WORDS[name]: step.phases[name] for name in PHASES}
            total = f"{duration_text(step.seconds)} a step, over {step.steps:,} steps"
            bars.append(bar(run.label, sizes, total=total, texts=texts))
    return bars


def step_of(run: Run) -> Breakdown | None:
    """The breakdown of a run, without its first steps where there are others."""
    counted = [line for line in run.train if is_phased(line) and is_whole(line, NEEDED)]
    decided = [decision.get("value") for decision in run.decisions if decision["name"] == "cadence"]
    steps = decided[-1] if decided and isinstance(decided[-1], Mapping) else {}  # as it was last
    cadence = {**CADENCE, **{name: step for name, step in steps.items() if number(step) is not None}}
    for warmup_steps in (WARMUP_STEPS, 0):
        breakdown = step_time.of(
            counted,
            evaluations=[line for line in run.evaluations if is_whole(line, ("seconds",))],
            checkpoints=[line for line in run.checkpoints if is_whole(line, ("seconds",))],
            cadence=cadence,
            warmup_steps=warmup_steps,
        )
        if breakdown and breakdown.seconds > 0:
            return breakdown
    return None


def is_phased(line: Line) -> bool:
    """Whether it says how many seconds each phase took."""
    phases = line.get("phases")
    return isinstance(phases, Mapping) and is_whole(phases, tuple(phases))


def is_whole(line: Line, keys: Sequence[str]) -> bool:
    """Whether there is a number under each of these keys."""
    return all(number(line.get(key)) is not None for key in keys)


def stages(runs: Sequence[Run]) -> list[Bar]:
    """Of each run: seconds of its stages, and what lay between them."""
    bars: list[Bar] = []
    for run in runs:
        stage_seconds = timings(run)
        total = stage_seconds.pop("total", 0.0)
        if not stage_seconds:
            continue
        if (remainder := total - sum(stage_seconds.values())) > 0:
            stage_seconds["between"] = remainder
        total_stages = sum(stage_seconds.values())
        texts = {name: duration_text(value) for name, value in stage_seconds.items()}
        bars.append(bar(run.label, stage_seconds, total=f"{duration_text(total_stages)} in all", texts=texts))
    return bars


def memory(run: Run) -> list[Bar]:
    """Bytes expected by component, and what was seen, to one scale; none where the plan is not known."""
    expected = {
        name: value for name, size in run.section("plan", "memory_bytes").items() if (value := number(size) or 0.0) > 0
    }
    total = expected.pop("total", sum(expected.values()))
    if not expected:
        return []
    measured = {name: value for name, value in seen_bytes(run).items() if value}
    scale = max([total, sum(expected.values()), *measured.values()])
    texts = {name: size_text(int(size)) for name, size in expected.items()}
    bars = [bar("expected", expected, total=size_text(int(total)), texts=texts, whole=scale)]
    for name, size in measured.items():
        text = f"{size_text(int(size))}, {size / total:.2f}x of what was expected"
        bars.append(bar(name, {name: size}, total=text, texts={name: size_text(int(size))}, whole=scale))
    return bars


def seen_bytes(run: Run) -> dict[str, float]:
    """The most memory that was seen, by where."""
    return {
        "seen, reserved on the GPU": max(numbers(run.train, "memory_bytes"), default=0.0),
        "seen, in use on the GPU by all": max(numbers(run.samples, "card_used_bytes"), default=0.0),
        "seen, of the run's processes": max(numbers(run.samples, "rss_bytes"), default=0.0),
    }
