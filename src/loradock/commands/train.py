"""`loradock train`: fine-tune an adapter. Options in, one run, what happened on the screen."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from loradock.commands.run_options import Ask, RunCommand, look_for_inputs, run_options
from loradock.config.load import Loaded
from loradock.config.schema import RunConfig
from loradock.distributed import schedulers
from loradock.errors import EnvironmentUnfit, Interrupted, UsageError
from loradock.machine import Host
from loradock.machine.library_variables import of_allocator, of_determinism
from loradock.machine.probe import instruction_set
from loradock.process import signals, streams

QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "BITSANDBYTES_NOWELCOME": "1",
}


@click.command(cls=RunCommand)
@run_options
@click.option("--demo", is_flag=True, help="Train the embedded demo: a tiny model, a small task, a minute or two.")
@click.option("--resume", is_flag=True, help="Continue the run in --output; an error if there is none.")
@click.option("--fresh", is_flag=True, help="Start a new run in a new directory; nothing is deleted.")
@click.option(
    "--allow-change",
    "allowed",
    metavar="FIELD",
    multiple=True,
    help="Continue although this field changed (train.learning_rate, versions, ...); recorded in the run.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Stop after this step as Ctrl-C would; the schedule stays that of the whole run.",
)
@click.option("--full-env-check", is_flag=True, help="Compute all environment checks, those proven before too.")
@click.option("--skip-env-check", is_flag=True, help="Skip the environment checks; recorded in the run.")
@click.option("--json", "as_json", is_flag=True, help="Print the run record as JSON on stdout at the end.")
def train(
    ask: Ask,
    *,
    demo: bool,
    resume: bool,
    fresh: bool,
    allowed: tuple[str, ...],
    stop_after: int | None,
    full_env_check: bool,
    skip_env_check: bool,
    as_json: bool,
) -> None:
    """Fine-tune a QLoRA adapter from CONFIG, a preset, or the short options alone.

    \b
    loradock train --demo
    loradock train --model DIR --data rows.jsonl
    loradock train run.yaml --set lora.rank=32

    The same command again continues an interrupted run, and shows the summary of a finished one. On a signal a run
    saves its last step before it ends: exit code 75, or 76 if there was no new step.
    """
    from loradock.commands.train_screen import Screen
    from loradock.data import first_look
    from loradock.model.patches import avx512
    from loradock.training import claiming
    from loradock.training.run import run
    from loradock.use import after

    if full_env_check and skip_env_check:
        what = "--full-env-check and --skip-env-check cannot be used together"
        raise UsageError(what, hint="leave one of them out")
    if not as_json:
        streams.result_lies_elsewhere()
    set_environment({**QUIET, **schedulers.rank_of_step(os.environ)})
    warnings.simplefilter("ignore")
    avx512.quiet()
    loaded, exam = wanted(ask, demo=demo, resume=resume, fresh=fresh, allowed=allowed)
    os.environ.update(deterministic(loaded.config.deterministic, cpu=instruction_set(Host())))
    with Screen(is_quiet=as_json) as screen, before_the_run():
        screen.warn(loaded.warnings)
        standing = claiming.standing_of(loaded, is_demo=demo, resume=resume, fresh=fresh, allowed=allowed)
        content = standing.record
        if standing.state == "finished":
            screen.was_finished(standing)
            directory = standing.directory
        else:
            for what in standing.damage:
                screen.warn((f"{what}: exported again from the last checkpoint",))
            look_for_inputs(loaded.config)
            after.check(loaded.config)
            if is_alone(os.environ):  # else the other ranks wait for this one to join them
                first_look.look(loaded.config.data, objective=loaded.config.objective_spec)
            around = claiming.claimed(
                loaded,
                standing,
                parent=claiming.parent_of(loaded, is_demo=demo),
                screen=screen,
                is_fresh=fresh,
                allowed=allowed,
                env_check="none" if skip_env_check else "full" if full_env_check else "due",
            )
            result = run(around, exam=exam, stop_after=stop_after)
            content, directory = result.record, result.directory
            with signals.deferred():  # it is done: what is left is to say so
                screen.finished(result)
        if screen.is_first and directory:
            after.make(loaded.config, directory, note=screen.note)
    if as_json:
        click.echo(json.dumps(content, indent=2, default=str))


@contextmanager
def before_the_run() -> Iterator[None]:
    """A signal that comes before the run can record it."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped by {signals.requested() or 'a signal'} before the run began") from None


def deterministic(asked: bool | str, *, cpu: str) -> dict[str, str]:
    """What the environment needs for `deterministic`. EnvironmentUnfit where this CPU has no AVX2."""
    if asked == "portable" and cpu not in ("x86-64-v3", "x86-64-v4"):
        what = f"deterministic: portable computes with AVX2, which this CPU ({cpu}) has not"
        raise EnvironmentUnfit(what, hint="--set deterministic=true: the same bits on CPUs of one kind")
    return of_determinism(asked)


def is_alone(environment: Mapping[str, str]) -> bool:
    """Whether this process is the only rank."""
    return environment.get("WORLD_SIZE", "1") == "1"


def set_environment(quiet: Mapping[str, str]) -> None:
    """What libraries read before they are imported, where the environment does not say it itself."""
    for name, value in {**quiet, **of_allocator(os.environ)}.items():
        os.environ.setdefault(name, value)


def wanted(
    ask: Ask, *, demo: bool, resume: bool, fresh: bool, allowed: tuple[str, ...]
) -> tuple[Loaded, Callable[..., Any] | None]:
    """What is to be run, and the demo's exam. Raises where it cannot be read, or is wrong."""
    if resume and fresh:
        raise UsageError("--resume and --fresh cannot be used together", hint="leave one of them out")
    if fresh and allowed:
        what = "--allow-change has no effect with --fresh: a new run may have any settings"
        raise UsageError(what, hint="leave one of them out")
    return demo_run(ask, resume=resume) if demo else (asked(ask, resume=resume), None)


def asked(ask: Ask, *, resume: bool) -> Loaded:
    """The configuration; with --resume that of the run in --output, unless CONFIG or the options describe one."""
    is_described = ask.config or ask.preset or ask.shortcuts.keys() >= {"--model", "--data"}
    loaded = ask.load() if is_described or not resume else over_record(ask)
    if resume and not loaded.config.output:
        raise no_directory()
    return loaded


def over_record(ask: Ask) -> Loaded:
    """The configuration that the run in --output keeps, with what else is asked for laid over it."""
    from loradock.training.run_dir import resume as resuming
    from loradock.training.run_dir.paths import RECORD

    if not ask.shortcuts.get("--output"):
        raise no_directory()
    directory = Path(str(ask.shortcuts["--output"]))
    record = resuming.recorded(directory)
    text = record.config.model_dump_json(exclude_defaults=True)
    loaded = replace(ask, config=directory / RECORD, text=text).load()
    options = {key: label for key, label in loaded.origins.items() if label.startswith("--")}
    refuse_what_only_a_person_gives(loaded.config, directory)
    messages = tuple(line for line in loaded.warnings if line.startswith("--"))
    return replace(loaded, origins=record.origins | options, warnings=messages)


def refuse_what_only_a_person_gives(config: RunConfig, directory: Path) -> None:
    """Of a run that is continued by its record alone: trust in its base's code, and leave to fetch from a hub.

    UsageError and InputMissing, with what the person types who means it.
    """
    from loradock.training.run_dir import fetching
    from loradock.training.run_dir import resume as resuming

    recorded = resuming.as_trained(resuming.read(directory), directory)
    model = config.model
    if recorded.model.trust_remote_code and not model.trust_remote_code:
        what = f"the run in {directory} runs Python code that its base ships, and a record cannot give that trust"
        raise UsageError(what, hint=f"--set model.trust_remote_code={model.name}")
    if (model.name, model.revision) == (recorded.model.name, recorded.model.revision):
        fetching.refuse_model(model)
    fetching.refuse_data(source for source in config.data.sources if source in recorded.data.sources)


def no_directory() -> UsageError:
    """For --resume without the directory of a run."""
    return UsageError("--resume needs the run directory", hint="loradock train --resume --output DIRECTORY")


def demo_run(ask: Ask, *, resume: bool) -> tuple[Loaded, Callable[..., Any]]:
    """The embedded configuration with the user's overrides, and the exam that scores it."""
    from loradock.demo import exam

    if resume:
        raise UsageError("--demo continues by itself", hint="leave out --resume")
    if ask.config is not None or ask.preset is not None:
        raise UsageError("--demo brings its own configuration", hint="leave out CONFIG and --preset, or --demo")
    loaded = replace(ask, config=exam.CONFIG).load()
    return replace(loaded, config=exam.resolved(loaded.config)), exam.hold
