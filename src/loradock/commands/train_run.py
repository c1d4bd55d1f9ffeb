"""One run of `loradock train`, from its configuration to what run.json holds: found, looked at, held, executed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock import signals
from loradock.commands.run_options import look_for_inputs
from loradock.config.load import Loaded
from loradock.errors import Locked
from loradock.training.run_dir.paths import RECORD

if TYPE_CHECKING:
    from loradock.env_check.guard import Guard
    from loradock.facts import Facts
    from loradock.machine import Host
    from loradock.training.run_dir.output_lock import OutputLock
    from loradock.training.run_dir.resume import Standing
    from loradock.training.stages import Result


def run_one(
    loaded: Loaded,
    *,
    resume: bool,
    fresh: bool,
    allowed: Collection[str],
    screen: Any,
    exam: Callable[..., Any] | None,
    is_demo: bool,
    skips_env_check: bool,
) -> dict[str, Any]:
    """Find the run, look at the machine, hold the directory, run, and say how it ended. Returns what run.json holds."""
    from loradock.demo.exam import verdict
    from loradock.distributed import collectives
    from loradock.env_check.examination import gathered
    from loradock.machine import Host
    from loradock.plan.knobs import parallel
    from loradock.training.run_dir import resume as resuming

    for warning in loaded.warnings:
        screen.note(f"warning: {warning}")
    parent = Path(loaded.config.output or "runs") if is_demo or not loaded.config.output else None
    look = partial(resuming.look, loaded, parent=parent, name=run_name(loaded), must_exist=resume, allowed=allowed)
    standing = resuming.NEW if fresh else look()
    if standing.state == "finished":
        screen.was_finished(standing)
        return standing.record
    look_for_inputs(loaded.config)
    host = Host()
    facts = gathered(host)
    parallel.check_processes(loaded.config, facts.world_size)
    guard, proof = looked_first(loaded, host=host, facts=facts, screen=screen, skips=skips_env_check)
    with collectives.joined(facts, config=loaded.config) as peers:
        result = run_held(
            loaded,
            standing,
            facts=facts,
            parent=parent,
            screen=screen,
            is_fresh=fresh,
            exam=exam,
            env_check=proof,
            guard=guard,
            spent=spent_so_far(host, proof),
            allowed=allowed,
            peers=peers,
        )
    with signals.deferred():  # it is done: what is left is to say so
        screen.finished(result)
        if exam and facts.rank == 0:
            screen.verdict(verdict(result.record["exam"]))
    return result.record


def run_held(
    loaded: Loaded, standing: Standing, *, facts: Facts, parent: Path | None, screen: Any, is_fresh: bool, **more: Any
) -> Result:
    """Run in a directory that is locked against other runs meanwhile; `more` is what `run.execute` takes besides."""
    from loradock.distributed import collectives
    from loradock.training import run
    from loradock.training.run_dir import resume as resuming

    directory, lock = Path(), None
    if facts.rank == 0:
        directory, lock = claimed(loaded, standing, parent=parent, is_fresh=is_fresh, screen=screen)
    try:
        if lock:
            standing = resuming.standing_of(directory) if (directory / RECORD).exists() else resuming.NEW
        directory, standing = collectives.from_first(facts, (directory, standing))
        screen.start(directory, is_first=facts.rank == 0)
        if lock and lock.warning:
            screen.note(f"warning: {lock.warning}")
        fence = lock.check if lock else lambda: None
        with redirect_stdout(sys.stderr):  # libraries print there; stdout is for our result alone
            return run.execute(
                loaded, facts=facts, directory=directory, view=screen, before=standing.record, fence=fence, **more
            )
    finally:
        if lock:
            lock.release()


def claimed(
    loaded: Loaded, standing: Standing, *, parent: Path | None, is_fresh: bool, screen: Any
) -> tuple[Path, OutputLock]:
    """The run directory, made where there is none, and locked against any other run."""
    from loradock.training.run_dir import paths as directories
    from loradock.training.run_dir.output_lock import OutputLock

    if standing.directory is not None:
        directory = directories.created(standing.directory, may_exist=True)
        try:
            return directory, OutputLock.take(directory)
        except Locked as held:
            if parent is None:
                raise
            screen.note(f"warning: {held.what}; a new run starts beside it")
    if parent is not None:
        directory = directories.numbered(parent, run_name(loaded))
    else:
        directory = Path(loaded.config.output or "")
        is_taken = is_fresh and directory.is_dir() and any(directory.iterdir())
        directory = directories.following(directory) if is_taken else directories.created(directory, may_exist=True)
    return directory, OutputLock.take(directory)


def looked_first(
    loaded: Loaded, *, host: Host, facts: Facts, screen: Any, skips: bool
) -> tuple[Guard | None, dict[str, Any]]:
    """Prove that this machine can train, once a machine: all that needs no computing, which follows the plan.

    Returns what proves the rest, and what was found, for run.json. Raises where the machine cannot train.
    """
    from loradock.env_check.guard import Guard
    from loradock.env_check.intent import intent

    if skips:
        screen.note("environment: not checked (--skip-env-check)")
        return None, {"skipped": "--skip-env-check"}
    if facts.local_rank:
        return None, {"skipped": "checked by the first process of this node"}
    screen.stage("environment")
    guard = Guard(host=host, facts=facts, plan=intent(host, loaded.config), shown=screen)
    return guard, guard.look()


def spent_so_far(host: Host, proof: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of this process until now, by stage: its start, and the environment check where there was one."""
    checked = float(proof.get("seconds", 0.0))
    stages = {"start": max(0.0, process_seconds(host) - checked), "env-check": checked}
    return {name: seconds for name, seconds in stages.items() if seconds}


def process_seconds(host: Host) -> float:
    """Since this process began, by the kernel's clock (`starttime` of proc_pid_stat(5)); 0 where it does not tell."""
    told = host.read_text("/proc/self/stat")
    if not told:
        return 0.0
    began = int(told.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def run_name(loaded: Loaded) -> str:
    """The run's name: asked for, or from the model and the first source."""
    config = loaded.config
    if config.name:
        return config.name
    return f"{Path(config.model.name).name}-{Path(config.data.sources[0].path.removeprefix('hub:')).name.split('.')[0]}"
