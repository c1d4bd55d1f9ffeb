"""P17: after a power cut a commit is there or it is not, because what it flushes comes before what depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.committing import committer, content
from faults.conftest import Trial
from faults.tracing import Call, traced

STAGE, TRASH = "/.stage-", "/.trash-"


def indices(calls: list[Call], *names: str, path: str) -> list[int]:
    """Where in the trace a call of these names is on just this path."""
    return [index for index, call in enumerate(calls) if call.name in names and path in call.paths[:1]]


def too_early(calls: list[Call], folder: Path) -> list[str]:
    """What is not flushed when something that depends on it happens: empty for a trace that a power cut cannot harm."""
    renames = [index for index, call in enumerate(calls) if call.name == "rename" and STAGE in call.paths[0]]
    assert len(renames) == 1, calls
    [rename] = renames
    stage = calls[rename].paths[0]
    created = [each.paths[0] for each in calls if each.name == "openat" and "O_CREAT" in each.rest and each.paths]
    wrong: list[str] = []
    for file in created:
        last_write = max(indices(calls, "write", path=file))
        if not any(last_write < index < rename for index in indices(calls, "fsync", path=file)):
            wrong.append(f"{Path(file).name} is not flushed between its last write and the rename")
    last_name = max(index for index, each in enumerate(calls) if each.name == "openat" and "O_CREAT" in each.rest)
    if not any(last_name < index < rename for index in indices(calls, "fsync", path=stage)):
        wrong.append("the staged folder is not flushed before the rename")
    flushed = indices(calls, "fsync", path=str(folder))
    removals = [i for i, each in enumerate(calls) if each.name == "rename" and TRASH in each.paths[-1]]
    if not any(rename < index < min(removals, default=len(calls)) for index in flushed):
        wrong.append("the rename is not flushed before an old one leaves")
    unlinks = [i for i, each in enumerate(calls) if each.name in ("unlink", "unlinkat", "rmdir")]
    if removals and not any(max(removals) < index < min(unlinks) for index in flushed):
        wrong.append("an old one loses files before its leaving is flushed")
    return wrong


def trace_of(tmp_path: Path, *, variant: str | None = None) -> tuple[list[Call], Path]:
    folder = tmp_path / "checkpoints"
    committer(folder).commit(10, files=content(10), progress={})
    return traced(folder, (20,), log=tmp_path / "trace", variant=variant), folder


def test_everything_is_flushed_before_what_depends_on_it(tmp_path: Path, trial: Trial) -> None:
    calls, folder = trace_of(tmp_path)
    assert sum("O_CREAT" in call.rest for call in calls) == 3
    assert any(TRASH in path for call in calls for path in call.paths)
    wrong = too_early(calls, folder)
    trial("P17", not wrong, wrong=wrong)


def test_the_first_commit_flushes_the_name_of_the_new_folder(tmp_path: Path, trial: Trial) -> None:
    folder = tmp_path / "checkpoints"
    calls = traced(folder, (10,), log=tmp_path / "trace")
    made = indices(calls, "mkdir", path=str(folder))
    flushed = indices(calls, "fsync", path=str(tmp_path))
    trial("P17", bool(made) and max(flushed) > made[0] and not too_early(calls, folder))


def test_a_commit_that_flushes_nothing_is_seen(tmp_path: Path) -> None:
    calls, folder = trace_of(tmp_path, variant="without-fsync")
    assert len(too_early(calls, folder)) == 6


@pytest.mark.parametrize("left_out", range(6))
def test_any_one_flush_that_is_left_out_is_seen(tmp_path: Path, left_out: int) -> None:
    calls, folder = trace_of(tmp_path)
    flushes = [call for call in calls if call.name == "fsync"]
    assert len(flushes) == 6
    assert len(too_early([call for call in calls if call is not flushes[left_out]], folder)) == 1
