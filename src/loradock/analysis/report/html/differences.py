"""Several runs side by side: in what they differed, and what that did. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loradock.analysis.report.html.runs import Line, Run, listed, number, numbers
from loradock.plan.plan import shown
from loradock.text.amounts import duration_text, size_text

ABSENT = "-"
CHECKED = "env-check"
LEAST_END_STEPS = 10
HASH = re.compile(r"[0-9a-f]{40,64}")
HASH_SIGNS = 12
OWN = ("output", "name")
"""What every run has of its own, and says nothing."""
MACHINE = ("platform", "python", "cpus", "memory_bytes", "in_container", "driver", "world_size", "git_commit")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same in all runs: its group and name, and what it is in each."""

    group: str
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One figure of every run; `ratios` to the first run where they tell something, else empty."""

    name: str
    values: tuple[str, ...]
    ratios: tuple[str, ...] = ()


def differences(runs: Sequence[Run]) -> list[Difference]:
    """What the user asked, what was decided, data and base, versions and machine, as far as they differ."""
    tables: list[Difference] = []
    for group, look in GROUPS:
        answers = [look(run) for run in runs]
        names = dict.fromkeys(name for answer in answers for name in answer)
        for name in names:
            values = tuple(text_of(answer[name]) if name in answer else ABSENT for answer in answers)
            if len(set(values)) > 1:
                tables.append(Difference(group=group, name=name, values=tuple(map(brief, values))))
    return tables


def brief(text: str) -> str:
    """A hash by its beginning, anything else as it is."""
    return text[:HASH_SIGNS] if HASH.fullmatch(text) else text


def leaves(content: Any, *, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested objects and lists, under its dotted name; an empty one is a value of its own."""
    if isinstance(content, Mapping) and content:
        for key, inner in content.items():
            yield from leaves(inner, path=f"{path}.{key}" if path else str(key))
    elif isinstance(content, list) and any(isinstance(key, (Mapping, list)) for key in content):
        for position, inner in enumerate(content):
            yield from leaves(inner, path=f"{path}.{position}" if path else str(position))
    else:
        yield path, content


def asked(run: Run) -> dict[str, Any]:
    """The configuration, flat."""
    config = run.section("config")
    return {name: value for name, value in leaves(config) if name and name not in OWN}


def decided(run: Run) -> dict[str, Any]:
    """What the plan and the engine decided, by name."""
    return {str(decision["name"]): decision.get("value") for decision in run.decisions}


def learned_from(run: Run) -> dict[str, Any]:
    """Base and data: revision and hashes, rows, tokens."""
    sources = {"base": run.at("base", "name"), "base revision": run.at("base", "revision")}
    sources |= {f"weights {name}": digest for name, digest in run.section("weights_sha256").items()}
    for position, source in enumerate(listed(run.at("data", "sources"))):
        sources |= {f"source {position} {key}": value for key, value in source.items() if key in ("sha256", "rows")}
    return sources | {key.replace("_", " "): value for key, value in run.section("plan", "data").items()}


def versions(run: Run) -> dict[str, Any]:
    """Packages."""
    return {"loradock": run.at("loradock"), **run.section("facts", "packages")}


def machine(run: Run) -> dict[str, Any]:
    """The machine that a run was on."""
    facts = run.section("facts")
    gpus = [gpu.get("name") for gpu in listed(facts.get("gpus"))]
    values = {key.replace("_", " "): facts.get(key) for key in MACHINE}
    proof = run.section("env_check")
    checked = proof.get("skipped") or proof.get("level")
    return {**values, CHECKED: checked, "gpus": ", ".join(map(str, gpus)) or "none", "lock": facts.get("lock_sha256")}


GROUPS: tuple[tuple[str, Callable[[Run], dict[str, Any]]], ...] = (
    ("configuration", asked),
    ("plan", decided),
    ("base and data", learned_from),
    ("versions", versions),
    ("machine", machine),
)


def text_of(value: Any) -> str:
    """A value as a person reads it, the same for the same value."""
    if value is None:
        return "none"
    return json.dumps(value, sort_keys=True) if isinstance(value, list) else shown(value)


def outcomes(runs: Sequence[Run]) -> list[Outcome]:
    """What each run came to, held against the first one."""
    figures = [
        figure("training loss, last steps", runs, last_loss, loss),
        figure("evaluation loss, last", runs, lambda run: last(numbers(run.evaluations, "loss")), loss),
        figure("evaluation loss, lowest", runs, lambda run: lowest(numbers(run.evaluations, "loss")), loss),
        figure("real tokens a second of training", runs, tokens_per_second, rate, has_ratio=True),
        figure("peak GPU memory", runs, peak_bytes, lambda value: size_text(int(value)), has_ratio=True),
        figure("seconds of training", runs, lambda run: timed(run, "training"), duration_text, has_ratio=True),
        figure("seconds in all", runs, lambda run: timed(run, "total"), duration_text, has_ratio=True),
        figure("steps", runs, lambda run: last(numbers(run.train, "step")), lambda value: f"{value:,.0f}"),
    ]
    ended = Outcome(name="how it ended", values=tuple(str(run.at("status", default="unknown")) for run in runs))
    return [figure_of_runs for figure_of_runs in figures if any(value != ABSENT for value in figure_of_runs.values)] + [
        ended
    ]


def figure(
    name: str,
    runs: Sequence[Run],
    look: Callable[[Run], float | None],
    say: Callable[[float], str],
    *,
    has_ratio: bool = False,
) -> Outcome:
    """One figure of every run, absent where a run has none."""
    values = [look(run) for run in runs]
    first = values[0]
    ratios = [f"{value / first:.2f}x" if value is not None and first else ABSENT for value in values]
    texts = tuple(ABSENT if value is None else say(value) for value in values)
    return Outcome(name=name, values=texts, ratios=tuple(ratios) if has_ratio and first else ())


def tokens_per_second(run: Run) -> float | None:
    """Real tokens of all metric lines over their seconds."""
    spent = sum(numbers(run.train, "seconds"))
    return sum(numbers(run.train, "tokens")) / spent if spent else None


def peak_bytes(run: Run) -> float | None:
    """The most that was reserved on the GPU; None on a CPU."""
    return max(numbers(run.train, "memory_bytes"), default=0.0) or None


def timed(run: Run, stage: str) -> float | None:
    """Seconds of a stage."""
    return timings(run).get(stage)


def timings(run: Run) -> dict[str, float]:
    """Seconds by stage, and in all; a record that does not count its environment check is given it."""
    seconds = {
        name: value for name, stage_value in run.section("timings_seconds").items() if (value := number(stage_value))
    }
    checked = number(run.at("env_check", "seconds"))
    if not checked or not seconds or CHECKED in seconds:
        return seconds
    return {CHECKED: checked, **seconds, **({"total": seconds["total"] + checked} if "total" in seconds else {})}


def last_loss(run: Run) -> float | None:
    """The mean training loss of the last steps, in nats a token."""
    mean = mean_loss(run.train[::-1])
    return mean[0] if mean else None


def mean_loss(lines: Sequence[Line]) -> tuple[float, int] | None:
    """The mean training loss of the steps at one end of a run, its lines from there, and how many steps they were.

    A line is the mean of its steps, so runs with another cadence can be compared, and no single step speaks for a run.
    """
    known = [line for line in lines if number(line.get("loss")) is not None]
    end, counted, total = end_steps(known), 0, 0.0
    for line, size in zip(known, steps_of(known), strict=True):
        if counted >= end:
            break
        counted += size
        total += size * line["loss"]
    return (total / counted, counted) if counted else None


def end_steps(lines: Sequence[Line]) -> int:
    """Of how many steps the loss at either end of a run is the mean: a tenth of them, at least ten, at most half."""
    steps = sum(steps_of(lines))
    return max(1, min(max(LEAST_END_STEPS, steps // 10), steps // 2))


def steps_of(lines: Sequence[Line]) -> list[int]:
    """How many steps each line is of, in the order given, which is rising or falling."""
    steps = sorted(line["step"] for line in lines)
    previous = dict(zip(steps, [0, *steps], strict=False))
    return [int(line["step"] - previous[line["step"]]) for line in lines]


def last(values: Sequence[float]) -> float | None:
    """The last value, if any."""
    return values[-1] if values else None


def lowest(values: Sequence[float]) -> float | None:
    """The lowest value, if any."""
    return min(values, default=None)


def loss(value: float) -> str:
    """Nats a token."""
    return f"{value:.4f}"


def rate(value: float) -> str:
    """Tokens a second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
