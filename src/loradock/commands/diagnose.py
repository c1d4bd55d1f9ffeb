"""`loradock diagnose`: find what slows a configuration. Options in, trials in children, a table and a remedy."""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands import diagnose_accuracy
from loradock.commands.page import say
from loradock.commands.run_options import Ask, Price, RunCommand, look_for_inputs, run_options
from loradock.errors import UsageError
from loradock.process import signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loradock.analysis.diagnose.search import Search
    from loradock.config.load import Loaded
    from loradock.plan.trial import Trial

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
DOCUMENT, PATCH = "diagnosis.json", "patch.yaml"


class Duration(click.ParamType):
    """90s, 10m, 1.5h; plain seconds too."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """In seconds."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        if not match or not float(match[1]):
            self.fail(f"not a duration: {value!r} (use 90s, 10m or 1h)", param, ctx)
        return float(match[1]) * UNITS[match[2] or "s"]


@click.command(cls=RunCommand)
@run_options(output="Keep results in this folder; the same command continues from them.")
@click.option("--steps", type=click.IntRange(min=2), default=20, show_default=True, help="Measured steps of each run.")
@click.option(
    "--warmup-steps",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Warm-up steps before them, not measured.",
)
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time to spend: 90s, 10m, 1h.")
@click.option(
    "--repeats",
    type=click.IntRange(min=3),
    default=3,
    show_default=True,
    help="Minimum rounds per trial; fewer for slower ones.",
)
@click.option("--trials", metavar="A,B", help="Only these trials.")
@click.option("--list", "is_listing", is_flag=True, help="List the trials for this configuration, run none.")
@diagnose_accuracy.options
@click.option("--price-per-hour", type=Price(), metavar="X", help="Price of the machine, for the cost saved.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON on stdout.")
def diagnose(
    ask: Ask,
    *,
    steps: int,
    warmup_steps: int,
    budget: float,
    repeats: int,
    trials: str | None,
    is_listing: bool,
    tasks: tuple[str, ...],
    evaluate_steps: int,
    evaluate_limit: int | None,
    price_per_hour: float | None,
    as_json: bool,
) -> None:
    """Find the bottleneck of CONFIG: measure one change at a time.

    \b
    loradock diagnose run.yaml
    loradock diagnose --model DIR --data rows.jsonl --budget 30m --output diagnosis
    loradock diagnose --preset mistral-a10 --model DIR --data rows.jsonl

    Each trial is a short real run in its own process, measured in rounds with the unchanged run (the baseline) until
    the difference is beyond the noise or the budget is spent. No trained weights are kept. With --output, results are
    kept in that directory and the same command continues from them. One process on one GPU.

    With --evaluate, what is faster is trained and asked as well, so that its risk to accuracy is a measured interval;
    that time comes on top of the budget.
    """
    from loradock.analysis.diagnose import accuracy, children, seeds
    from loradock.analysis.diagnose.accuracy import Asked
    from loradock.analysis.diagnose.diagnose import chosen
    from loradock.commands.train import QUIET, set_environment
    from loradock.use.evaluation.tasks import check

    set_environment(QUIET | children.BEFORE_IMPORT)
    warnings.simplefilter("ignore")
    folder = Path(str(ask.shortcuts["--output"])) if "--output" in ask.shortcuts else None
    probe = replace(ask, shortcuts={key: value for key, value in ask.shortcuts.items() if key != "--output"})
    names = [name.strip() for name in (trials or "").split(",") if name.strip()]
    if trials is not None and not names:
        raise UsageError("--trials names no trial", hint="leave it out for all of them; --list shows them")
    of_note = seeds.trials_of(ask.preset)
    if is_listing and of_note:  # they are written down: no model, rows or GPU is needed to name them
        listed(chosen(of_note, names))
        return
    if tasks:
        check(tasks)
    with redirect_stdout(sys.stderr):
        search, by = searched(
            probe,
            folder=folder,
            names=names,
            is_listing=is_listing,
            limits={"steps": steps, "warmup_steps": warmup_steps, "budget": budget, "repeats": repeats},
        )
    if is_listing:
        listed(search.trials)
        return
    accuracies = None
    if tasks and not by and search.baseline.rounds:
        request = Asked(tasks=tasks, steps=evaluate_steps, limit=evaluate_limit)
        arms = accuracy.arms_of(search, names=names)
        try:
            accuracies = diagnose_accuracy.measured(arms, request, command=partial(command_of, probe), folder=folder)
        except KeyboardInterrupt:
            by = signals.requested() or "a signal"
    told(search, probe, folder=folder, price_per_hour=price_per_hour, as_json=as_json, accuracies=accuracies)
    if by:
        stopped(search, by, folder)


def searched(
    ask: Ask, *, folder: Path | None, names: Sequence[str], is_listing: bool, limits: dict[str, Any]
) -> tuple[Search, str | None]:
    """The search when it has ended, and the signal that ended it, if one did."""
    import time

    from loradock.analysis.diagnose import children, diagnose, seeds
    from loradock.analysis.diagnose.results import Results
    from loradock.analysis.diagnose.search import Search
    from loradock.env_check.examination import gathered
    from loradock.machine import Host
    from loradock.training.run_dir.paths import created

    began = time.monotonic()
    loaded = ask.load()
    look_for_inputs(loaded.config)
    facts = gathered(Host())
    if facts.world_size > 1:
        raise UsageError("diagnose measures one process", hint="start it without torchrun")
    measured = {"steps": limits["steps"], "warmup_steps": limits["warmup_steps"]}
    results = Results(
        created(folder, may_exist=True) if folder else None,
        identity=diagnose.identity(loaded, facts=facts, **measured),
    )
    note(f"{len(results.known)} results of an earlier call are taken over" if results.known else "")
    children.preload(has_gpu=facts.has_gpu and loaded.config.device != "cpu")
    with diagnose.folder_beside(loaded.config.output) as place:
        bench = diagnose.Bench(load=loader(ask), facts=facts, folder=place, **measured)
        plan = bench.look(limit_seconds=diagnose.seconds_left(limits["budget"], began))
        of_note = seeds.trials_of(ask.preset)
        trials = diagnose.chosen(of_note or diagnose.trials_for(loaded, plan=plan, facts=facts), names)
        search = Search(
            trials=trials,
            measure=bench.measure,
            results=results,
            tell=note,
            budget_seconds=limits["budget"],
            least_rounds=limits["repeats"],
            is_table=of_note is not None,
            began=began,
        )
        if is_listing:
            return search, None
        try:
            search.go()
        except KeyboardInterrupt:
            return search, signals.requested() or "a signal"
    if search.baseline.failure:
        raise diagnose.failure(search.baseline.failure, "the baseline cannot be measured")
    return search, None


def listed(trials: Sequence[Trial]) -> None:
    """A line a trial, with what it gives up."""
    for trial in trials:
        click.echo(f"{trial.name:26}{trial.title}{f' ({trial.price})' if trial.price else ''}")


def loader(ask: Ask) -> Any:
    """What loads the configuration with further settings, so that each is checked as a person's would be."""

    def load(settings: Sequence[str]) -> Loaded:
        return replace(ask, overrides=(*ask.overrides, *settings)).load()

    return load


def told(
    search: Search,
    ask: Ask,
    *,
    folder: Path | None,
    price_per_hour: float | None,
    as_json: bool,
    accuracies: dict[str, Any] | None = None,
) -> None:
    """Print and keep what was found."""
    from loradock.analysis.diagnose import accuracy, seeds
    from loradock.analysis.diagnose.document import document
    from loradock.analysis.report import diagnosis as report
    from loradock.commands.page import page
    from loradock.files import atomic_io

    if not search.baseline.rounds:
        note("nothing was measured yet: use a larger --budget")
        return
    content = document(search, price_per_hour=price_per_hour, published=seeds.published(ask.preset))
    patch = content["patch"]
    command = command_of(ask, patch["settings"]) if patch else None
    content["command"] = command
    content["accuracy"] = accuracies
    if folder:
        atomic_io.replace(folder / DOCUMENT, json.dumps(content, indent=2) + "\n")
        if patch:
            atomic_io.replace(folder / PATCH, patch["yaml"])
    if as_json:
        click.echo(json.dumps(content, indent=2))
        return
    with page() as screen:
        columns = screen.width
        screen.print(report.trials_table(content, columns=columns))
    note(report.left_out_line(content, columns=columns))
    say(report.phases_line(content))
    for line in report.verdict_lines(content, command=command):
        click.echo(line)
    for line in accuracy.lines(accuracies) if accuracies else ():
        click.echo(line)


def command_of(ask: Ask, settings: Sequence[str]) -> str:
    """The `train` command of the same run with these settings."""
    arguments = ["loradock", "train", *([str(ask.config)] if ask.config else [])]
    if ask.preset:
        arguments += ["--preset", ask.preset]
    for flag, value in ask.shortcuts.items():
        for item in value if isinstance(value, list) else [value]:
            arguments += [flag, str(item)]
    for setting in (*ask.overrides, *settings):
        arguments += ["--set", setting]
    return shlex.join(arguments)


def stopped(search: Search, by: str, folder: Path | None) -> None:
    """End as a run does that a signal ended: 75 where something new is kept, else 76."""
    from loradock.errors import Interrupted, Stopped

    if folder and search.baseline.rounds:
        raise Stopped(f"stopped by {by}; what was measured is kept in {folder}", hint="the same command continues")
    hint = "with --output DIRECTORY, results are kept and the same command continues"
    raise Interrupted(f"stopped by {by}", hint=hint)


def note(text: str) -> None:
    """A line of progress."""
    if text:
        say(text, stderr=True)
