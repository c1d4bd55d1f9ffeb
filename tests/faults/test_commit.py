"""P2: killed at any system call of a commit, no visible checkpoint is partial, and one to go on from is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faults.committing import RUN_ID, committer, content
from faults.conftest import Trial
from faults.tracing import Call, kill_at, traced

from loradock.training.checkpoint.store import found, newest_good, sweep

SCENARIOS = {"next-step": (10, 20), "name-taken": (10, 10)}
TELLING = ("mkdir", "openat", "write", "fsync", "unlinkat", "rmdir")


def prepared(folder: Path, *, step: int) -> Path:
    """A folder of checkpoints with one in it."""
    shutil.rmtree(folder, ignore_errors=True)
    committer(folder).commit(step, files=content(step), progress={"step": step})
    return folder


def problems(folder: Path, *, steps: tuple[int, int]) -> list[str]:
    """What is wrong after a kill: partial ones that can be seen, none to use, or debris after the next start."""
    said = [f"{each.path.name}: {each.problem}" for each in found(folder) if each.problem]
    if said:
        return said
    good, _ = newest_good(folder, run_id=RUN_ID)
    if (
        good is None
        or good.step not in steps
        or good.read("training_state.pt") != content(good.step)["training_state.pt"]
    ):
        return [f"no usable checkpoint: {good}"]
    sweep(folder)
    committer(folder).commit(30, files=content(30), progress={})
    left = sorted(path.name for path in folder.iterdir() if ".set-aside-" not in path.name)
    return [] if left == ["checkpoint-30"] else [f"debris: {left}"]


def few(calls: list[Call]) -> list[Call]:
    """One of each telling kind, and all renames."""
    first = [next(call for call in calls if call.name == name) for name in TELLING if name in {c.name for c in calls}]
    return [*first, *(call for call in calls if call.name == "rename")]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_commit_killed_at_any_system_call_leaves_no_partial_checkpoint(
    tmp_path: Path, trial: Trial, scenario: str, pytestconfig: pytest.Config
) -> None:
    """At every one with --full, else at the telling ones."""
    old, new = steps = SCENARIOS[scenario]
    folder = tmp_path / "checkpoints"
    calls = traced(prepared(folder, step=old), (new,), log=tmp_path / "trace")
    assert [call.name for call in calls].count("fsync") >= 5
    for call in calls if pytestconfig.getoption("--full") else few(calls):
        was_killed = kill_at(call, folder=prepared(folder, step=old), steps=(new,))
        assert was_killed, f"the run survived {call}"
        wrong = problems(folder, steps=steps)
        trial("P2", not wrong, scenario=scenario, call=f"{call.name} {call.number}", problems=wrong)


def test_the_same_kills_of_a_save_in_place_are_seen_to_leave_partial_ones(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    calls = traced(prepared(folder, step=10), (20,), log=tmp_path / "trace", variant="in-place")
    writes = [call for call in calls if call.name == "write"]
    for call in writes:
        assert kill_at(call, folder=prepared(folder, step=10), steps=(20,), variant="in-place")
        assert problems(folder, steps=(10, 20))
