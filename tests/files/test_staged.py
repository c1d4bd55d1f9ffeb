"""P2 and P17 of every output: killed at any system call, or out of space, it is whole or not there, and all is tidy."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import namespace
from faults.tracing import calls_of, killed_at
from files.writing import NAMES, WAYS, new_file, new_folder, replaced_file, rewritten_folder

from loradock.errors import DiskFull, Locked, NotWritable, UsageError
from loradock.files import lock, staged

pytestmark = pytest.mark.thin(2)

PROGRAM = Path(__file__).with_name("writing.py")
REPLACING = ("rewritten_folder", "replaced_file")


def content(output: Path) -> dict[str, bytes] | bytes | None:
    """What lies at the output; None where nothing does."""
    if output.is_dir():
        return {str(file.relative_to(output)): file.read_bytes() for file in output.rglob("*") if file.is_file()}
    return output.read_bytes() if output.exists() else None


def expected(way: str, text: str) -> dict[str, bytes] | bytes:
    return text.encode() * 40_000 if "file" in way else dict.fromkeys(NAMES, text.encode() * 20_000)


@pytest.mark.parametrize("way", WAYS)
def test_a_kill_at_any_system_call_leaves_the_old_or_the_new_one_whole_and_the_next_run_cleans_up(
    tmp_path: Path, way: str, pytestconfig: pytest.Config
) -> None:
    output = tmp_path / "out" / "output"
    program = [str(PROGRAM), way, str(output), "n"]

    def begin() -> bytes | dict[str, bytes] | None:
        shutil.rmtree(output.parent, ignore_errors=True)
        output.parent.mkdir()
        if way in REPLACING:
            WAYS[way](output, "o")
        return content(output)

    before = begin()
    calls = [call for call in calls_of(program, log=tmp_path / "trace") if str(output.parent) in call.rest]
    assert content(output) == expected(way, "n")
    chosen = calls if pytestconfig.getoption("--full") else calls[:: max(1, len(calls) // 8)] + calls[-2:]
    seen: set[str] = set()
    for call in chosen:
        assert begin() == before
        assert killed_at(call, program=program), call
        found = content(output)
        # The two renames of a folder in the place of another are not one: a reader may find neither.
        allowed = [before, expected(way, "n"), *([None] if way == "rewritten_folder" else [])]
        assert found in allowed, call
        seen.add("new" if found == expected(way, "n") else "old")
        if found is not None and way in ("new_folder", "new_file", "cached_folder"):
            shutil.rmtree(output) if output.is_dir() else output.unlink()
        WAYS[way](output, "n")
        assert content(output) == expected(way, "n"), call
        assert [path.name for path in output.parent.iterdir()] == ["output"], call
    assert seen == {"old", "new"} or way == "cached_folder"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "cached_folder"])
def test_everything_is_flushed_before_the_rename_and_the_rename_after_it(tmp_path: Path, way: str) -> None:
    output = tmp_path / "out" / "output"
    if way == "rewritten_folder":
        output.parent.mkdir()
    calls = calls_of([str(PROGRAM), way, str(output), "n"], log=tmp_path / "trace")
    stage = str(output.with_name(".output.staged"))
    rename = next(i for i, call in enumerate(calls) if call.name == "rename" and call.paths[0] == stage)
    flushed = {call.paths[0]: i for i, call in enumerate(calls) if call.name == "fsync"}
    written = {call.paths[0]: i for i, call in enumerate(calls) if call.name == "write" and call.paths}
    lying = [path for path in written if path.startswith(stage)]
    folders = [] if "file" in way else [stage, f"{stage}/below"]
    assert lying
    assert all(written.get(path, -1) < flushed[path] < rename for path in (*lying, *folders))
    assert flushed[str(output.parent)] > rename
    assert flushed.get(str(tmp_path), 0) < rename


FULL = """
import json, os, subprocess, sys
from pathlib import Path
from typing import Any
program, ways, sizes = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
for way in ways:
    for size in sizes:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", "/mnt"], check=True)
        done = subprocess.run([sys.executable, program, way, "/mnt/output", "n"])
        print(json.dumps([way, int(size), done.returncode, os.listdir("/mnt")]), flush=True)
        subprocess.run(["umount", "/mnt"], check=True)
"""


def test_a_full_disk_ends_with_its_own_code_and_leaves_nothing() -> None:
    command = [*namespace(":"), sys.executable, "-c", FULL, str(PROGRAM), ",".join(WAYS), "4", "8", "24", "36", "400"]
    paths = {"PYTHONPATH": f"{PROGRAM.parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    assert done.returncode == 0, done.stderr
    for way, size, code, names in map(json.loads, done.stdout.splitlines()):
        raw = 200 + errno.ENOSPC
        assert (code, names) == ((0, ["output"]) if size == 400 else (code, [])), (way, size)
        assert size == 400 or code == (raw if way in ("rewritten_folder", "cached_folder") else DiskFull.exit_code), way


@pytest.mark.parametrize("way", [new_folder, rewritten_folder])
def test_files_have_the_mode_that_the_umask_leaves_and_what_links_lead_to_keeps_its_own(
    tmp_path: Path, way: object
) -> None:
    foreign = tmp_path / "foreign"
    foreign.touch(mode=0o640)
    before = os.umask(0o002)
    try:
        context = staged.folder if way is new_folder else staged.rewritten
        with context(tmp_path / "output") as folder:
            (folder / "link").symlink_to(foreign)
            (folder / "closed").touch(mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "output" / "closed").stat().st_mode) == 0o664
    assert stat.S_IMODE((tmp_path / "output").stat().st_mode) == 0o775
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o640
    assert (tmp_path / "output" / "link").is_symlink()


@pytest.mark.parametrize("way", WAYS)
def test_an_error_on_the_way_leaves_what_was_there(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "output"
    if way in REPLACING:
        WAYS[way](output, "o")
    before = content(output)

    def refused(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](output, "n")
    assert content(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ([] if before is None else ["output"])


def test_what_is_there_is_not_written_over_not_even_where_it_came_meanwhile(tmp_path: Path) -> None:
    output = tmp_path / "output"

    def meanwhile() -> None:
        with staged.file(output) as file:
            file.write_text("ours")
            output.write_text("somebody's")

    with pytest.raises(UsageError, match="already exists"):
        meanwhile()
    assert output.read_text() == "somebody's"
    with pytest.raises(UsageError, match="already exists"):
        new_folder(output, "n")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        lock.writing(tmp_path / "output"),
        pytest.raises(Locked, match=rf"another process is writing .*/output \(process {os.getpid()} on "),
    ):
        replaced_file(tmp_path / "output", "n")
    new_file(tmp_path / "output", "n")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_a_file_system_without_locks_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unknown)
    for way in WAYS:
        WAYS[way](tmp_path / way, "n")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(WAYS)


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match="file/output"):
        new_folder(tmp_path / "file" / "output", "n")


def test_a_private_folder_that_a_sweep_came_before_is_begun_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, swept = lock.take, list[Path]()

    def sweep_first(descriptor: int) -> bool | None:
        if not swept:
            swept.extend(tmp_path.glob(f"{staged.STAGE}*"))
            staged._sweep(tmp_path)
        return take(descriptor)

    monkeypatch.setattr(lock, "take", sweep_first)
    with staged.in_cache(tmp_path) as place:
        assert swept
        assert not swept[0].exists()
        assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_a_sweep_has_the_lock_until_all_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"{staged.STAGE}left"
    left.mkdir()
    (left / staged.LOCK).touch()
    removed, watched = shutil.rmtree, list[bool | None]()

    def watch(path: Path, **options: Any) -> None:
        with (path / staged.LOCK).open("rb") as file:
            watched.append(lock.take(file.fileno()))
        removed(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watch)
    staged._sweep(tmp_path)
    assert watched == [False]
    assert not left.exists()


def test_without_a_lock_to_tell_its_age_does(tmp_path: Path) -> None:
    old, fresh = tmp_path / f"{staged.STAGE}old", tmp_path / f"{staged.STAGE}fresh"
    for left in (old, fresh):
        left.mkdir()
        (left / "rows").touch()
    long_ago = time.time() - 2 * staged.STALE_SECONDS
    os.utime(old, (long_ago, long_ago))
    with staged.in_cache(tmp_path):
        assert not old.exists()
        assert fresh.exists()


def test_a_private_folder_is_gone_though_one_removal_of_a_file_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, failures = os.unlink, [OSError(errno.EIO, "Input/output error")]

    def fails_once(path: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        unlink(path, **options)

    with staged.in_cache(tmp_path):
        monkeypatch.setattr(os, "unlink", fails_once)
    assert not failures
    assert not list(tmp_path.iterdir())
