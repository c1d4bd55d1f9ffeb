"""What a person sees of a run: a live progress bar on a terminal, plain lines elsewhere; all of it on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loradock.analysis.report import console, findings
from loradock.commands.page import fitting_console, folded, say, show
from loradock.demo.exam import verdict
from loradock.env_check.child import Looked
from loradock.env_check.examination import Examination
from loradock.plan.plan import Plan
from loradock.text.amounts import size_text
from loradock.training.events import Decided, Dtypes, EvalResult, Event, Saved, Shrunk, StepDone, StepResult
from loradock.training.run import Result
from loradock.training.run_dir.paths import ADAPTER
from loradock.training.run_dir.record import metrics
from loradock.training.run_dir.resume import Standing

Lines = list[dict[str, Any]]


class Screen:
    """A `claiming.Screen` on stderr. Only rank 0 shows anything; the summary goes to stdout unless `is_quiet`."""

    def __init__(self, *, is_quiet: bool) -> None:
        self.console = fitting_console(stderr=True)
        self.is_quiet = is_quiet
        self.is_first = True
        self.total = 0
        self.progress: Progress | None = None
        self.task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress:
            self.progress.stop()

    def note(self, text: str) -> None:
        """One line of text, on rank 0."""
        if self.is_first:
            self.console.print(folded(text, stderr=True), markup=False, soft_wrap=True)

    def warn(self, warnings: Sequence[str]) -> None:
        """What the configuration is warned of."""
        for warning in warnings:
            self.note(f"warning: {warning}")

    def start(self, directory: Path, *, is_first: bool) -> None:
        """The run directory is known."""
        self.is_first = is_first
        self.note(f"run directory: {directory}")

    def looked(self, looked: Looked) -> None:
        """A check of the environment ended; what is well needs no line."""
        for finding in looked.findings:
            if finding.severity != "ok":
                for line in findings.finding_lines(looked.check, finding):
                    self.note(line)

    def examined(self, examination: Examination) -> None:
        """The environment was looked at."""
        if line := findings.provenance(examination):
            self.note(line)
        self.note(findings.verdict(examination))

    def stage(self, text: str) -> None:
        """A stage begins."""
        self.note(f"{text} ...")

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows and tokens prepared so far; shown on a terminal only."""
        if self.is_first and self.console.is_terminal:
            self.console.print(f"  {rows:,} rows, {tokens:,} tokens", end="\r", markup=False)

    def plan(self, plan: Plan) -> None:
        """The plan was made."""
        if not self.is_first:
            return
        for line in console.plan_lines(plan):
            self.note(line)
        show(self.console, console.plan_table(plan))
        show(self.console, console.memory_table(plan))
        self.total = plan.steps.value

    def event(self, event: Event) -> None:
        """Something happened in training."""
        if not self.is_first:
            return
        match event:
            case StepDone():
                self.advance(event.step)
            case StepResult():
                self.measured(event)
            case EvalResult():
                self.note(console.evaluation_line(event))
            case Dtypes():
                self.note(console.dtype_line(event.found))
            case Decided():
                for decision in event.decisions:
                    self.note(console.decision_line(decision))
            case Shrunk():
                self.note(console.shrunk_line(event))
            case Saved() if not self.console.is_terminal:
                self.note(f"step {event.step}  checkpoint saved")
            case _:
                pass

    def advance(self, step: int) -> None:
        """Move the bar."""
        if not self.console.is_terminal:
            return
        if self.progress is None:
            columns = (
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self.progress = Progress(*columns, console=self.console)
            self.task = self.progress.add_task("training", total=self.total, text="")
            self.progress.start()
        self.progress.update(self.task, completed=step)

    def measured(self, result: StepResult) -> None:
        """A metric line was made."""
        if self.progress:
            text = f"loss {result.loss:.3f}  lr {result.learning_rate:.1e}  {result.tokens_per_second:,.0f} tok/s"
            memory = f"  {size_text(result.memory_bytes)}" if result.memory_bytes else ""
            self.progress.update(self.task, text=text + memory)
        else:
            self.note(console.metric_line(result, self.total))

    def finished(self, result: Result) -> None:
        """The summary, on stdout."""
        if self.progress:
            self.progress.stop()
        if self.is_first:
            self.summary(result.record, result.metrics, result.evaluations, directory=result.directory)
            for line in verdict(result.record["exam"]) if "exam" in result.record else ():
                say(line, stderr=self.is_quiet)

    def was_finished(self, standing: Standing) -> None:
        """The run was finished before: its summary, and how to have another."""
        directory = standing.directory or Path()
        self.note(f"the run in {directory} is finished; --fresh starts a new one beside it")
        self.summary(standing.record, metrics(directory, "train"), metrics(directory, "eval"), directory=directory)

    def summary(self, record: dict[str, Any], trained: Lines, evaluated: Lines, *, directory: Path) -> None:
        """What came out, on stdout."""
        if self.is_quiet:
            return
        for line in console.summary(record, trained, evaluated):
            say(line)
        say(f"adapter: {directory / ADAPTER}")
