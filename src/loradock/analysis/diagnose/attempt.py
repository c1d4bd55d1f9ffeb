"""What a child does: the real run of a configuration, as far as it is needed, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from loradock.analysis.diagnose.measure import EVENTS, Measured, read
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.errors import LoradockError, OutOfMemory
from loradock.facts import Facts
from loradock.plan import planner
from loradock.plan.audit.prediction import has_rates, tokens_per_second
from loradock.plan.plan import Plan
from loradock.plan.planner import context_of
from loradock.training.context import opened
from loradock.training.events import Event, Shrunk, StepResult
from loradock.training.run import run

LOCAL_TRACKERS = ("tensorboard",)
"""Others would see every trial."""


class Enough(Exception):
    """The run came as far as it is needed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure: this many steps after this many of warm-up.

    `waits_for` are the events (evaluation, saving) to be measured; `event_seconds` stand in for the others. The
    baseline `may_shrink` where the GPU is full, as a run may; a trial that has to is out of memory.
    """

    steps: int
    warmup_steps: int
    waits_for: tuple[str, ...] = tuple(EVENTS)
    event_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    may_shrink: bool = False

    @property
    def last_step(self) -> int:
        """How many steps the run makes."""
        return self.steps + self.warmup_steps


@dataclass
class Watch:
    """A view that ends the run where it is no longer needed. Shows nothing."""

    task: Task | None
    plans: list[Plan] = field(default_factory=list[Plan])

    def note(self, text: str) -> None:
        """Kept in the log of the child."""
        print(text)  # noqa: T201  the child's own log, where its last words are looked for

    def stage(self, text: str) -> None:
        """The export is of no interest."""
        if text == "export":
            raise Enough

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Nobody watches."""

    def plan(self, plan: Plan) -> None:
        """Without a task the plan is all that is wanted."""
        self.plans.append(plan)
        if self.task is None:
            raise Enough

    def event(self, event: Event) -> None:
        """The last metric line is the end where nothing is waited for that comes after it."""
        match event:
            case Shrunk() if self.task and not self.task.may_shrink:
                raise OutOfMemory(event.why)
            case StepResult() if self.task and event.step >= self.task.last_step and not self.task.waits_for:
                raise Enough
            case _:
                pass


def look(loaded: Loaded, *, facts: Facts, directory: Path) -> Plan:
    """The plan of the whole run; what it needs is prepared. Raises what a run raises up to there."""
    return run_to(Watch(task=None), loaded, facts=facts, directory=directory)


def measure(loaded: Loaded, *, facts: Facts, directory: Path, task: Task) -> Measured:
    """Run the task and read what it came to. Raises what a run raises."""
    short = replace(loaded, config=shortened(loaded.config, task))
    plan = run_to(Watch(task=task), short, facts=facts, directory=directory)
    run_plan = planner.make(loaded.config, facts=facts, model=plan.model, data=plan.data)
    cadence = asdict(run_plan.cadence.value)
    figures = read(directory, cadence=cadence, warmup_steps=task.warmup_steps, event_seconds=task.event_seconds)
    predicted = context_of(run_plan, loaded.config, facts=facts)
    return Measured(
        **figures,
        total_steps=run_plan.steps.value,
        lost_tokens=plan.data.lost_tokens,
        all_tokens=plan.data.tokens + plan.data.lost_tokens,
        cut_rows=plan.data.truncated_rows + plan.data.dropped_rows,
        device=run_plan.device.value,
        engine=plan.engine.value,
        micro_batch=run_plan.micro_batch.value,
        expected=tokens_per_second(predicted) if has_rates(predicted) else None,
    )


def run_to(watch: Watch, loaded: Loaded, *, facts: Facts, directory: Path) -> Plan:
    """Run until the watch has enough; the last plan that was made."""
    try:
        run(opened(loaded, facts=facts, directory=directory, view=watch))
    except LoradockError as error:
        if not isinstance(error.__cause__, Enough):
            raise
    return watch.plans[-1]


def shortened(config: RunConfig, task: Task) -> RunConfig:
    """The configuration of a run that makes the task's steps and writes a line for each.

    Evaluations and checkpoints come as asked, at least once; how often they come in the whole run is the plan's.
    """
    last = task.last_step

    def every(interval: int | str) -> int:
        return min(interval, last) if isinstance(interval, int) else last

    evaluate = every(config.evaluation.every if "evaluation" in task.waits_for else last)
    save = every(config.checkpoints.every if "saving" in task.waits_for else last)
    trackers = tuple(name for name in config.logging.trackers if name in LOCAL_TRACKERS)
    sections = {
        "train": {"max_steps": last, "early_stopping": None},
        "evaluation": {"every": evaluate},
        "checkpoints": {"every": save},
        "logging": {"every": 1, "trackers": trackers},
    }
    changes = {name: getattr(config, name).model_copy(update=update) for name, update in sections.items()}
    return config.model_copy(update=changes)
