"""P11, and what else decides which checkpoints stay: the step, never a clock; nothing visible is ever written into."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from faults.committing import RUN_ID, committer, content
from faults.conftest import Trial

from loradock.errors import Locked
from loradock.training.checkpoint.store import Checkpoints, newest_good, sweep

HOUR_SECONDS, YEAR_SECONDS = 3600, 365 * 86400
SKEWS_SECONDS = (-YEAR_SECONDS, -HOUR_SECONDS, 0, HOUR_SECONDS, YEAR_SECONDS)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("skew_seconds", SKEWS_SECONDS)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_clock_that_jumps_decides_nothing(tmp_path: Path, skew_seconds: int, keep: int, trial: Trial) -> None:
    folder, commits = tmp_path / "checkpoints", committer(tmp_path / "checkpoints", keep=keep)
    for step in (9, 10):
        path = commits.commit(step, files=content(step), progress={})
        seconds = time.time() + skew_seconds * (1 if step == 9 else -1)
        for each in (path, *path.iterdir()):
            os.utime(each, (seconds, seconds))
    commits.commit(100, files=content(100), progress={})
    good, _ = newest_good(folder, run_id=RUN_ID)
    kept = ["checkpoint-100"] if keep == 1 else ["checkpoint-10", "checkpoint-100"]
    is_newest = good is not None and good.step == 100
    trial("P11", is_newest and names(folder) == kept, skew_seconds=skew_seconds, keep=keep)


def test_steps_that_are_kept_besides_stay(tmp_path: Path) -> None:
    commits = committer(tmp_path, keep=1)
    for step in (1, 2, 3):
        commits.commit(step, files=content(step), progress={}, keep_besides=[1])
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-3"]
    commits.commit(4, files=content(4), progress={})
    assert names(tmp_path) == ["checkpoint-4"]


def test_a_step_whose_name_is_taken_is_set_aside_and_not_written_into(tmp_path: Path) -> None:
    commits = committer(tmp_path, keep=2)
    commits.commit(5, files=content(5), progress={})
    (tmp_path / "checkpoint-5" / "training_state.pt").write_bytes(b"spoilt")
    for _ in range(2):
        commits.commit(5, files=content(5), progress={})
    assert names(tmp_path) == ["checkpoint-5", "checkpoint-5.set-aside-1", "checkpoint-5.set-aside-2"]
    assert (tmp_path / "checkpoint-5.set-aside-1" / "training_state.pt").read_bytes() == b"spoilt"


def test_a_run_that_was_taken_over_commits_nothing(tmp_path: Path) -> None:
    committer(tmp_path).commit(1, files=content(1), progress={})

    def fence() -> None:
        raise Locked("another run took over", hint="--fresh")

    fenced = Checkpoints(tmp_path, run_id=RUN_ID, fingerprint={}, keep=1, fence=fence)
    with pytest.raises(Locked):
        fenced.commit(2, files=content(2), progress={})
    assert names(tmp_path) == ["checkpoint-1"]


def test_leftovers_are_swept_and_nothing_else(tmp_path: Path) -> None:
    committer(tmp_path).commit(1, files=content(1), progress={})
    for name in (".stage-1", ".trash-2", "checkpoint-9.set-aside-1", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    assert sweep(tmp_path) == ()
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-9.set-aside-1", "mine"]
    assert sweep(tmp_path / "missing") == ()


@pytest.mark.parametrize("mask", [0o002, 0o027, 0o077])
def test_folders_and_files_have_the_mode_that_the_umask_leaves(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = committer(tmp_path / "checkpoints").commit(1, files=content(1), progress={})
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)} == {0o777 & ~mask}
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o666 & ~mask}


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    for name in ("../escape", "manifest.json", "", ".."):
        with pytest.raises(ValueError, match="no name for a file"):
            committer(tmp_path).commit(1, files={name: b"x"}, progress={})
    assert names(tmp_path) == []


def test_trash_that_could_not_be_removed_once_goes_with_the_next_commit(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    commits = committer(folder, keep=2)
    commits.commit(1, files=content(1), progress={})
    trash = folder / ".trash-0"
    trash.mkdir()
    (trash / "adapter_model.safetensors").write_bytes(b"a reader held it open")
    (folder / ".trash-1").touch()
    commits.commit(2, files=content(2), progress={})
    assert names(folder) == ["checkpoint-1", "checkpoint-2"]
