"""One diagnosis from a configuration: its plan, the trials that make sense, the measurements in children."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from loradock.analysis.diagnose import attempt, children
from loradock.analysis.diagnose.attempt import Task
from loradock.analysis.diagnose.children import Answer
from loradock.analysis.diagnose.measure import Failed, Outcome
from loradock.config.load import Loaded, leaves
from loradock.data.read import files
from loradock.errors import LoradockError, OutOfMemory, Problem, UsageError
from loradock.facts import Facts
from loradock.plan.plan import Plan
from loradock.plan.planner import context_of
from loradock.plan.trial import Trial
from loradock.plan.trials import proposed
from loradock.text.suggest import did_you_mean
from loradock.training.run_dir.paths import created

Load = Callable[[Sequence[str]], Loaded]
"""Further `--set` texts -> the configuration with them. Raises ConfigError."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where configurations are measured: in children, each in a folder of its own below `folder`."""

    load: Load
    facts: Facts
    folder: Path
    steps: int
    warmup_steps: int

    def look(self, *, limit_seconds: float) -> Plan:
        """The plan of the configuration as it is. Raises what a run would have raised up to there."""
        look = self.child(partial(attempt.look, self.load(()), facts=self.facts), limit_seconds=limit_seconds)
        if isinstance(look, Failed) and look.kind == "too slow":
            what = f"the plan was not made in the {limit_seconds:.0f} s that the budget leaves: nothing was measured"
            raise UsageError(what, hint="a larger --budget, such as --budget 10m, the default")
        if isinstance(look, Failed):
            raise failure(look, "the run cannot start")
        return look.value

    def measure(
        self, settings: tuple[str, ...], waits_for: tuple[str, ...], event_seconds: dict[str, float], limit: float
    ) -> Outcome:
        """A run with these settings, as `search.Measure` says."""
        task = Task(
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            waits_for=waits_for,
            event_seconds=event_seconds,
            may_shrink=not settings,
        )
        try:
            loaded = self.load(settings)
        except LoradockError as error:
            what = "; ".join(problem.what for problem in error.problems) or error.what
            return Failed(kind="failed", words=what, exit_code=error.exit_code)
        outcome = self.child(partial(attempt.measure, loaded, facts=self.facts, task=task), limit_seconds=limit)
        if isinstance(outcome, Failed):
            return outcome
        measured = outcome.value
        if measured.device == "cpu":
            measured = type(measured)(**{**asdict(measured), "memory_bytes": outcome.peak_bytes})
        return measured

    def child(self, work: Callable[..., object], *, limit_seconds: float) -> Answer | Failed:
        """Do the work in a child with a run directory of its own, which is removed."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        run = folder / "run"
        run.mkdir()
        try:
            return children.run(partial(work, directory=run), folder=folder, limit_seconds=limit_seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder_beside(output: str | None) -> Iterator[Path]:
    """A folder for runs on the disk where the run itself would write; it is removed whatever happens."""
    parent = Path(output or "runs").absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    created(parent, may_exist=True)
    folder = Path(tempfile.mkdtemp(prefix=".loradock-diagnose-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trials_for(loaded: Loaded, *, plan: Plan, facts: Facts) -> tuple[Trial, ...]:
    """Every trial of the registry that makes sense for this configuration."""
    return proposed(context_of(plan, loaded.config, facts=facts))


def chosen(trials: Sequence[Trial], names: Sequence[str]) -> tuple[Trial, ...]:
    """Those with these names, all where none is given. UsageError for a name that is not among them."""
    known = [trial.name for trial in trials]
    problems = [
        Problem(what=f"unknown trial for this configuration: {name}", hint=did_you_mean(name, known))
        for name in names
        if name not in known
    ]
    if problems:
        hint = f"known: {', '.join(known)}; --list describes them"
        raise UsageError("--trials: unknown trials", hint=hint, problems=problems)
    return tuple(trial for trial in trials if not names or trial.name in names)


def failure(outcome: Failed, what: str) -> LoradockError:
    """The error of a configuration that cannot be measured as it is."""
    kind = OutOfMemory if outcome.kind == "out of memory" else LoradockError
    error = kind(f"{what}: {outcome.words}", hint="loradock train with the same options says more")
    error.exit_code = outcome.exit_code if outcome.exit_code > 0 else error.exit_code
    return error


def identity(loaded: Loaded, *, facts: Facts, steps: int, warmup_steps: int) -> dict[str, str]:
    """What measurements hold for, as text by name: configuration, size and time of its data files, machine, steps."""
    config = {key: value for key, value in leaves(loaded.config).items() if key != "output"}
    marks = {
        f"content of {file}": f"{file.stat().st_size} bytes of {file.stat().st_mtime_ns}"
        for source in loaded.config.data.sources
        for file in files(source)
    }
    machine = {"cpus": facts.cpus, "gpus": [asdict(gpu) for gpu in facts.gpus]}
    packages = {f"version of {name}": version for name, version in facts.packages.items()}
    marks_of_run = {**config, **marks, **machine, **packages, "--steps": steps, "--warmup-steps": warmup_steps}
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in marks_of_run.items()}


def seconds_left(budget_seconds: float, since: float) -> float:
    """Of a budget that began at `since` on the monotonic clock; at least one second."""
    return max(1.0, budget_seconds - (time.monotonic() - since))
