"""`loradock train`: fine-tune an adapter. Options in, one run, what happened on the screen."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.run_options import Ask, run_options
from loradock.config.load import Loaded
from loradock.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from loradock.facts import Facts
    from loradock.host import Host

QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "BITSANDBYTES_NOWELCOME": "1",
}
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@click.command()
@run_options
@click.option("--demo", is_flag=True, help="Train the embedded demo: a tiny model, a small task, a minute or two.")
@click.option("--resume", is_flag=True, help="Continue the run in the output directory from its last checkpoint.")
@click.option("--skip-env-check", is_flag=True, help="Do not prove first that this machine can train; it is recorded.")
@click.option("--json", "as_json", is_flag=True, help="Print the run record as JSON on stdout at the end.")
def train(ask: Ask, *, demo: bool, resume: bool, skip_env_check: bool, as_json: bool) -> None:
    """Fine-tune a QLoRA adapter from CONFIG, a preset, or the short options alone.

    \b
    loradock train --demo
    loradock train --model DIR --data rows.jsonl
    loradock train run.yaml --set lora.rank=32
    """
    from loradock.commands.train_screen import Screen

    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    loaded, exam = demo_run(ask, resume=resume) if demo else (asked(ask, resume=resume), None)
    if loaded.config.deterministic:
        os.environ.update(DETERMINISTIC)
    signal.signal(signal.SIGTERM, interrupted)
    with Screen(is_quiet=as_json) as screen:
        try:
            content = run_one(
                loaded, resume=resume, screen=screen, exam=exam, is_demo=demo, skips_env_check=skip_env_check
            )
        except KeyboardInterrupt:
            raise Interrupted("stopped by a signal before the run began") from None
    if as_json:
        click.echo(json.dumps(content, indent=2, default=str))


def asked(ask: Ask, *, resume: bool) -> Loaded:
    """The configuration; with --resume the recorded one where only --output is given, else checked against it."""
    from loradock import resume as resuming

    if not resume:
        return ask.load()
    if ask.config is None and ask.preset is None and not ask.overrides and set(ask.shortcuts) == {"--output"}:
        directory = str(ask.shortcuts["--output"])
        loaded = resuming.recorded(Path(directory))
        loaded = replace(loaded, config=loaded.config.model_copy(update={"output": directory}))
    else:
        loaded = ask.load()
    if not loaded.config.output:
        raise UsageError("--resume does not know which run", hint="loradock train --resume --output DIRECTORY")
    resuming.check(loaded, Path(loaded.config.output))
    return loaded


def run_one(
    loaded: Loaded,
    *,
    resume: bool,
    screen: Any,
    exam: Callable[..., Any] | None,
    is_demo: bool,
    skips_env_check: bool,
) -> dict[str, Any]:
    """Look at the machine, choose the directory, run, and say how it ended. Returns the content of run.json."""
    from loradock import directory as directories
    from loradock import run
    from loradock.checks.examination import gathered
    from loradock.demo.exam import verdict
    from loradock.engine import ranks
    from loradock.host import Host

    for warning in loaded.warnings:
        screen.note(f"warning: {warning}")
    config = loaded.config
    host = Host()
    facts = gathered(host)
    proof = looked_first(loaded, host=host, facts=facts, screen=screen, skips=skips_env_check)
    ranks.join(facts, asked=config.device)
    if config.output and not is_demo:
        directory = directories.named(Path(config.output), resume=resume) if facts.rank == 0 else Path(config.output)
    else:
        parent = Path(config.output or "runs")
        directory = directories.numbered(parent, run_name(loaded)) if facts.rank == 0 else parent
    directory = ranks.from_first(facts, directory)
    screen.start(directory, is_first=facts.rank == 0)
    try:
        with redirect_stdout(sys.stderr):  # libraries print there; stdout is for our result alone
            result = run.execute(
                loaded, facts=facts, directory=directory, resume=resume, view=screen, exam=exam, env_check=proof
            )
    finally:
        ranks.leave()
    screen.finished(result)
    if exam and facts.rank == 0:
        screen.verdict(verdict(result.record["exam"]))
    return result.record


def looked_first(loaded: Loaded, *, host: Host, facts: Facts, screen: Any, skips: bool) -> dict[str, Any]:
    """Prove that this machine can train, once a machine; what was found, for run.json. Raises where it cannot."""
    from loradock.checks.examination import examine
    from loradock.checks.intent import intent

    if skips:
        screen.note("environment: not checked (--skip-env-check)")
        return {"skipped": "--skip-env-check"}
    if facts.local_rank:
        return {"skipped": "the first process of this machine looks"}
    screen.stage("environment")
    examination = examine(host=host, facts=facts, plan=intent(host, loaded.config), progress=screen.looked)
    screen.examined(examination)
    examination.refuse()
    return examination.summary()


def demo_run(ask: Ask, *, resume: bool) -> tuple[Loaded, Callable[..., Any]]:
    """The embedded configuration with the user's overrides, and the exam that scores it."""
    from loradock.demo import exam

    if resume:
        raise UsageError("--demo always starts a new run", hint="leave out --resume")
    if ask.config is not None or ask.preset is not None:
        raise UsageError("--demo brings its own configuration", hint="leave out CONFIG and --preset, or --demo")
    loaded = replace(ask, config=exam.CONFIG).load()
    return replace(loaded, config=exam.resolved(loaded.config)), exam.hold


def run_name(loaded: Loaded) -> str:
    """The run's name: asked for, or from the model and the first source."""
    config = loaded.config
    if config.name:
        return config.name
    return f"{Path(config.model.name).name}-{Path(config.data.sources[0].path.removeprefix('hub:')).name.split('.')[0]}"


def interrupted(_: int, __: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: the record is written, the exit code says so."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
