"""Run directories: numbered ones, named ones, what is refused with which exit code, and what a full disk says."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loradock.commands import profile
from loradock.errors import DiskFull, LoradockError, NotWritable, StorageError, UsageError
from loradock.files.system_errors import storage_error
from loradock.training.run_dir import paths as directories

MAKE_NUMBERED = """
import sys
from pathlib import Path
from loradock.training.run_dir.paths import numbered
sys.stdin.readline()
for _ in range(10):
    print(numbered(Path(sys.argv[1]), "race").name)
"""


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A directory of one's own as a user whom permissions bind, also where the tests run as root."""
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield Path(home)
        finally:
            if is_root:
                os.seteuid(0)


def test_runs_are_numbered_from_one_and_follow_the_highest(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    assert [directories.numbered(parent, "demo").name for _ in range(2)] == ["demo-001", "demo-002"]
    (parent / "demo-041").mkdir()
    (parent / "demo-x").mkdir()
    (parent / "demo-two-099").mkdir()
    assert directories.numbered(parent, "demo").name == "demo-042"
    assert directories.numbered(parent, "demo-two").name == "demo-two-100"


def test_a_number_that_only_a_file_or_a_broken_link_holds_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "demo-001").write_text("")
    (tmp_path / "demo-002").symlink_to(tmp_path / "nowhere")
    assert directories.numbered(tmp_path, "demo").name == "demo-003"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("my model/7B", "my-model-7B-001"),
        ("../../etc", "etc-001"),
        ("...", "run-001"),
        ("", "run-001"),
        ("[a]*?", "a-001"),
        ("ünï", "n-001"),
    ],
)
def test_any_name_becomes_one_plain_directory(tmp_path: Path, name: str, slug: str) -> None:
    made = directories.numbered(tmp_path, name)
    assert made == tmp_path / slug
    assert list(made.iterdir()) == []


def test_processes_that_start_at_once_get_directories_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_NUMBERED, str(tmp_path)]
    makers = [subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for maker in makers:
        assert maker.stdin
        maker.stdin.write("\n")
        maker.stdin.flush()
    names = [name for maker in makers for name in maker.communicate(timeout=120)[0].split()]
    assert sorted(names) == [f"race-{number:03d}" for number in range(1, 41)]


def test_a_directory_that_is_new_empty_or_holds_what_a_killed_start_left_holds_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    for name in (".lock", ".run.json.42", "status.json"):
        (tmp_path / "begun" / name).write_text("")
    assert [directories.holds_run(tmp_path / name) for name in ("empty", "begun", "missing")] == [False] * 3
    assert not (tmp_path / "missing").exists()


def test_a_directory_that_holds_a_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert directories.holds_run(tmp_path)


def test_a_directory_that_holds_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="is not empty") as refused:
        directories.holds_run(tmp_path)
    assert refused.value.exit_code == 64


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", ".snapshots", ".zfs"])
def test_a_new_volume_counts_as_empty_for_each_command_that_wants_an_empty_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert not directories.holds_run(tmp_path)
    assert profile.folder(str(tmp_path), name="p") == tmp_path
    (tmp_path / "thesis.tex").touch()
    for wants_empty in (directories.holds_run, lambda path: profile.folder(str(path), name="p")):
        with pytest.raises(UsageError, match=r"is not empty \(thesis.tex\)"):
            wants_empty(tmp_path)


def test_the_next_directory_beside_one_is_the_first_free_number(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out-003").mkdir()
    assert [directories.following(tmp_path / "out").name for _ in range(2)] == ["out-002", "out-004"]


def test_runs_before_come_with_the_highest_number_first(tmp_path: Path) -> None:
    for name in ("demo-9", "demo-100", "demo-20", "demo-x", "demo-two-300", "demo-101"):
        (tmp_path / name).mkdir()
        if name != "demo-101":
            (tmp_path / name / "run.json").touch()
    assert [path.name for path in directories.numbered_before(tmp_path, "demo")] == ["demo-100", "demo-20", "demo-9"]
    assert directories.numbered_before(tmp_path, "other") == []


def test_a_file_in_the_place_of_the_directory_or_its_parent_is_not_writable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for make in (
        lambda: directories.created(file, may_exist=True),
        lambda: directories.created(file / "run", may_exist=True),
        lambda: directories.numbered(file, "demo"),
    ):
        with pytest.raises(NotWritable) as refused:
            make()
        assert refused.value.exit_code == 77
        assert "--output" in (refused.value.hint or "")


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_directory_that_the_user_may_not_write_is_refused(mode: int) -> None:
    with ordinary_user() as home:
        closed = home / "closed"
        closed.mkdir()
        closed.chmod(mode)
        try:
            for make in (
                lambda: directories.created(closed, may_exist=True),
                lambda: directories.created(closed / "run", may_exist=True),
                lambda: directories.numbered(closed, "demo"),
            ):
                with pytest.raises(NotWritable, match="closed") as refused:
                    make()
                assert refused.value.exit_code == 77
        finally:
            closed.chmod(0o755)


def test_a_full_disk_is_named_as_such_with_the_space_as_remedy() -> None:
    with pytest.raises(OSError, match="No space") as full:
        Path("/dev/full").write_text("x")
    error = storage_error(full.value, Path("out/run.json"))
    assert isinstance(error, DiskFull)
    assert error.exit_code == 73
    assert "out/run.json" in error.what
    assert "free space" in (error.hint or "")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, NotWritable),
        (errno.EACCES, NotWritable),
        (errno.EPERM, NotWritable),
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
    ],
)
def test_every_kind_of_failed_write_has_an_error_of_its_own(code: int, kind: type[LoradockError]) -> None:
    error = storage_error(OSError(code, os.strerror(code)), Path("out"))
    assert type(error) is kind
    assert error.hint
    assert "--" not in error.hint  # every verb raises it, and `merge` names its output without an option
