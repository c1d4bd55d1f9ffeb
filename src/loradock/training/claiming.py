"""The directory of the run that was asked for: found or made, locked, the machine checked first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal, Protocol

from loradock.config.load import Loaded
from loradock.distributed import collectives
from loradock.env_check.examination import gathered
from loradock.env_check.guard import Guard, Shown
from loradock.env_check.intent import intent
from loradock.errors import Locked
from loradock.facts import Facts
from loradock.files import atomic_io
from loradock.machine import Host
from loradock.plan.knobs import parallel
from loradock.training.context import RunContext, View, opened
from loradock.training.run import import_libraries
from loradock.training.run_dir import paths as directories
from loradock.training.run_dir import resume as resuming
from loradock.training.run_dir.output_lock import OutputLock
from loradock.training.run_dir.paths import RECORD
from loradock.training.run_dir.resume import Standing

Extent = Literal["due", "full", "none"]
"""How much of the environment check a run makes: what is not proven yet, all, or nothing."""


class Screen(View, Shown, Protocol):
    """A view that also shows where the run lies, and what was found of the machine."""

    def start(self, directory: Path, *, is_first: bool) -> None:
        """The run directory is known; `is_first` on rank 0, whose screen shows."""


@contextmanager
def claimed(
    loaded: Loaded,
    standing: Standing,
    *,
    parent: Path | None,
    screen: Screen,
    is_fresh: bool,
    allowed: Collection[str],
    env_check: Extent = "due",
) -> Iterator[RunContext]:
    """Open the run that stands so: continue it, or begin it in a new directory.

    `env_check` says how much of that is made. `parent` is where numbered directories lie, None where the user named
    one. Raises where the machine cannot train, Locked where another run holds the directory, and what `context.opened`
    raises.
    """
    host = Host()
    facts = gathered(host)
    parallel.check_processes(loaded.config, facts.world_size)
    guard, proof = looked_first(loaded, host=host, facts=facts, screen=screen, extent=env_check)
    spent = spent_so_far(host, proof)
    with (
        collectives.joined(facts, config=loaded.config) as peers,
        held(loaded, standing, facts=facts, parent=parent, is_fresh=is_fresh, screen=screen) as (
            directory,
            lock,
            before,
        ),
        redirect_stdout(sys.stderr),  # libraries print there; stdout is for our result alone
    ):
        import_libraries()
        with opened(
            loaded,
            facts=facts,
            directory=directory,
            view=screen,
            env_check=proof,
            guard=guard,
            spent=spent,
            before=before,
            allowed=allowed,
            fence=lock.check if lock else lambda: None,
            peers=peers,
        ) as context:
            yield context


@contextmanager
def held(
    loaded: Loaded, standing: Standing, *, facts: Facts, parent: Path | None, is_fresh: bool, screen: Screen
) -> Iterator[tuple[Path, OutputLock | None, dict[str, Any]]]:
    """The run directory, rank 0's lock on it, and the record of the run that lies there, as it is once it is held."""
    directory, lock = Path(), None
    if facts.rank == 0:
        directory, lock = taken(loaded, standing, parent=parent, is_fresh=is_fresh, screen=screen)
    try:
        if lock:  # only now nobody else writes there
            standing = resuming.taken_up(directory) if (directory / RECORD).exists() else resuming.NEW
        directory, standing = collectives.from_first(facts, (directory, standing))
        screen.start(directory, is_first=facts.rank == 0)
        if lock and lock.warning:
            screen.note(f"warning: {lock.warning}")
        yield directory, lock, standing.record
    finally:
        if lock:
            lock.release()


def taken(
    loaded: Loaded, standing: Standing, *, parent: Path | None, is_fresh: bool, screen: View
) -> tuple[Path, OutputLock]:
    """The run directory, made where there is none, and locked."""
    if standing.directory is not None:
        directory = directories.created(standing.directory, may_exist=True)
        try:
            return directory, OutputLock.take(directory)
        except Locked as locked:
            if parent is None:
                raise
            screen.note(f"warning: {locked.what}; this run starts in a new directory beside it")
    if parent is not None:
        directory = directories.numbered(parent, run_name(loaded))
    else:
        directory = Path(loaded.config.output or "")
        is_taken = is_fresh and directory.is_dir() and any(atomic_io.contents(directory))
        directory = directories.following(directory) if is_taken else directories.created(directory, may_exist=True)
    return directory, OutputLock.take(directory)


def looked_first(
    loaded: Loaded, *, host: Host, facts: Facts, screen: Screen, extent: Extent
) -> tuple[Guard | None, dict[str, Any]]:
    """Prove that this machine can train, once a node: all that needs no computing, which follows the plan.

    Returns what proves the rest, and what was found, for run.json. Raises where the machine cannot train.
    """
    if extent == "none":
        screen.note("environment: not checked (--skip-env-check)")
        return None, {"skipped": "--skip-env-check"}
    if facts.local_rank:
        return None, {"skipped": "local rank 0 of this node checks"}
    screen.stage("environment")
    guard = Guard(host=host, facts=facts, plan=intent(host, loaded.config), shown=screen, is_full=extent == "full")
    return guard, guard.look()


def spent_so_far(host: Host, proof: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of this process until now, by stage: its start, and the environment check where there was one."""
    checked = float(proof.get("seconds", 0.0))
    stages = {"start": max(0.0, process_seconds(host) - checked), "env-check": checked}
    return {name: seconds for name, seconds in stages.items() if seconds}


def process_seconds(host: Host) -> float:
    """Since this process began, by the kernel's clock (`starttime` of proc_pid_stat(5)); 0 where it does not tell."""
    text = host.read_text("/proc/self/stat")
    if not text:
        return 0.0
    began = int(text.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def run_name(loaded: Loaded) -> str:
    """The run's name: asked for, or from the model and the first source."""
    config = loaded.config
    if config.name:
        return config.name
    return f"{Path(config.model.name).name}-{Path(config.data.sources[0].path.removeprefix('hub:')).name.split('.')[0]}"


def standing_of(loaded: Loaded, *, is_demo: bool, resume: bool, fresh: bool, allowed: Collection[str]) -> Standing:
    """Where the run stands that this configuration asks for; see `run_dir.resume.look`."""
    if fresh:
        return resuming.NEW
    parent = parent_of(loaded, is_demo=is_demo)
    return resuming.look(loaded, parent=parent, name=run_name(loaded), must_exist=resume, allowed=allowed)


def parent_of(loaded: Loaded, *, is_demo: bool) -> Path | None:
    """Where numbered run directories lie; None where the user named the run's own."""
    output = loaded.config.output
    return Path(output or "runs") if is_demo or not output else None
