"""Folders of a run: full, read-only, somebody else's, in memory, lost with the container, on a network."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults, namespace
from env_check.spoilt_machine import IN_CONTAINER, printed, stranger

from loradock.env_check.base import Intent
from loradock.env_check.system import filesystem, storage
from loradock.machine import Host
from loradock.machine.answers import Attempt
from loradock.machine.folders import holding, mounts

pytestmark = pytest.mark.thin(2)

IN_SRV = ("env", "-C", "/srv")
SPACE_AND_STORAGE = ("--only", "space,storage")
SHARED = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
40 22 0:50 / /home/ada/runs rw,nosuid,nodev shared:2 - fuse.sshfs ada@store:/runs rw,user_id=1000
41 22 0:51 / /mnt/with\\040space rw - nfs4 store:/all rw,vers=4.2,local_lock=none,addr=10.0.0.1
42 22 0:52 / /mnt/old rw - nfs store:/old rw,vers=3,nolock,addr=10.0.0.1
43 22 0:53 / /mnt/c rw - 9p drvfs rw,trans=fd
44 22 0:54 / /mnt/c rw - tmpfs none rw
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "run.yaml"
    file.write_text("model: {name: /models/base}\ndata: {sources: [{path: /data/rows.jsonl}]}\n", encoding="utf-8")
    return str(file)


def plan(folder: str = "/runs") -> Intent:
    return Intent(output=Path(folder), cache=Path("/cache"), scratch=Path("/tmp"))


def test_a_full_disk_is_named_by_both_space_and_storage(examined: Examine, faults: Faults) -> None:
    within = namespace("mount -t tmpfs -o size=1m none /srv; cat /dev/zero > /srv/full 2>/dev/null || true")
    found = examined(*SPACE_AND_STORAGE, within=[*within, *IN_SRV])
    assert found.exit_code == 73
    faults.seen("the output's disk is full", made="real", finding=found.one("space"), check="space", exit_code=73)
    again = found.one("storage", containing="write failed: No space left on device")
    faults.seen("a write finds no space", made="real", finding=again, check="storage", exit_code=73)


def test_a_disk_without_inodes_is_named(examined: Examine, faults: Faults) -> None:
    within = namespace("mount -t tmpfs -o size=4g,nr_inodes=20 none /srv")
    found = examined("--only", "space", within=[*within, *IN_SRV])
    faults.seen("the output's disk has no inodes", made="real", finding=found.one("space"), check="space", exit_code=73)
    assert "inodes" in found.one("space")["what"]


def test_a_disk_that_may_become_too_small_is_a_warning(examined: Examine, faults: Faults) -> None:
    within = namespace("mount -t tmpfs -o size=300m none /srv")
    found = examined("--only", "space", within=[*within, *IN_SRV])
    faults.seen("the output's disk is small", made="real", finding=found.one("space"), check="space")
    assert found.exit_code == 0


def test_a_read_only_output_is_found_before_the_first_save(examined: Examine, faults: Faults) -> None:
    within = namespace("mount -t tmpfs -o size=1g none /srv; mount -o remount,ro /srv")
    found = examined("--only", "storage", within=[*within, *IN_SRV])
    faults.seen(
        "the output is mounted read-only", made="real", finding=found.one("storage"), check="storage", exit_code=77
    )


def test_an_output_of_somebody_else_is_found(examined: Examine, faults: Faults) -> None:
    within = [*stranger("mount -t tmpfs -o mode=755 none /srv"), *IN_SRV]
    found = examined("--only", "storage", within=within, env={"HOME": "/tmp", "USER": "somebody", "TMPDIR": None})
    seen = found.one("storage")
    faults.seen("the output is somebody else's", made="real", finding=seen, check="storage", exit_code=77)


def test_storage_leaves_nothing_behind(examined: Examine, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "LORADOCK_CACHE": str(tmp_path / "cache")}
    assert examined(*SPACE_AND_STORAGE, cwd=tmp_path, env=env).content["worst"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_lost_with_the_container_is_named(examined: Examine, faults: Faults, config: str) -> None:
    layers = "mount -t tmpfs none /mnt; mkdir /mnt/low /mnt/up /mnt/work"
    overlay = "mount -t overlay -o lowerdir=/mnt/low,upperdir=/mnt/up,workdir=/mnt/work none /srv"
    within = [*namespace(f"{layers}; {overlay}"), *IN_SRV]
    arguments = ("--only", "filesystem", "--config", config)
    found = examined(*arguments, within=within, env=IN_CONTAINER)
    faults.seen(
        "the output is in the container's layer", made="real", finding=found.one("filesystem"), check="filesystem"
    )
    no_run = examined("--only", "filesystem", within=within, env=IN_CONTAINER)
    assert no_run.content["worst"] == "ok"


def test_an_output_in_memory_is_named(examined: Examine, faults: Faults, config: str) -> None:
    within = [*namespace("mount -t tmpfs none /srv"), *IN_SRV]
    found = examined("--only", "filesystem", "--config", config, within=within, env=IN_CONTAINER)
    faults.seen("the output is in memory", made="real", finding=found.one("filesystem"), check="filesystem")


def test_the_longest_mount_point_above_a_path_holds_it_and_the_last_of_several() -> None:
    listed = mounts(SHARED)
    kinds = {
        path: (mount.kind if (mount := holding(listed, path)) else None)
        for path in ("/", "/home/ada", "/home/ada/runs", "/home/ada/runs-2", "/mnt/with space/x", "/mnt/c/x")
    }
    assert list(kinds.values()) == ["ext4", "ext4", "fuse.sshfs", "ext4", "nfs4", "tmpfs"]
    assert holding((), "/home") is None


def test_file_systems_without_sound_locks_are_named(faults: Faults) -> None:
    listed = {mount.point: mount for mount in mounts(SHARED)}

    def judged(point: str, role: str = "output") -> str:
        return filesystem.judge(listed[point], role, is_run=True, in_container=False)

    assert judged("/") == judged("/mnt/with space") == ""
    for fault, point, role in (
        ("the output is on sshfs", "/home/ada/runs", "output"),
        ("the output is on NFS without locks", "/mnt/old", "output"),
        ("the scratch is on NFS", "/mnt/with space", "scratch"),
    ):
        found = filesystem.warning(judged(point, role), remedy=filesystem.elsewhere(role, plan()))
        faults.seen(fault, made="constructed", finding=printed(filesystem.CHECK, found), check="filesystem")


def test_a_disk_that_neither_syncs_nor_locks_is_a_warning_and_one_that_does_not_rename_an_error(faults: Faults) -> None:
    attempt = Attempt(folder="/runs", failed={"fsync": errno.EINVAL, "lock": errno.ENOLCK, "rename": errno.EIO})
    found = [printed(storage.CHECK, each) for each in storage.judge(attempt, ["output", "cache"], plan())]
    faults.seen("the output cannot be synced", made="constructed", finding=found[0], check="storage")
    faults.seen("the output has no locks", made="constructed", finding=found[1], check="storage")
    faults.seen("the output cannot rename", made="constructed", finding=found[2], check="storage", exit_code=74)


def test_a_scratch_that_is_not_there_is_named_and_the_one_that_is_taken_is_probed(
    examined: Examine, faults: Faults, tmp_path: Path
) -> None:
    for folder, fault in ((tmp_path / "nope", "TMPDIR is not there"), ("/proc/nope", "TMPDIR cannot be made")):
        found = examined("--only", "system", "--level", "quick", cwd=tmp_path, env={"TMPDIR": str(folder)})
        assert found.exit_code == 0
        assert [each["check"] for each in found.content["findings"] if each["severity"] != "ok"] == ["scratch"]
        faults.seen(fault, made="real", finding=found.one("scratch"), check="scratch")
    assert list(tmp_path.iterdir()) == []


def read_only(folder: str) -> str:
    """Its content stays to be seen: this checkout may lie there."""
    return f"mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}"


def test_a_scratch_that_takes_no_file_is_named(examined: Examine, faults: Faults) -> None:
    within = namespace("mount -t tmpfs -o size=64k none /srv; cat /dev/zero > /srv/full 2>/dev/null || true")
    found = examined("--only", "scratch", within=within, env={"TMPDIR": "/srv"})
    faults.seen("TMPDIR is full", made="real", finding=found.one("scratch"), check="scratch")
    default = examined("--only", "scratch", within=namespace(read_only("/tmp")), env={"TMPDIR": None})
    faults.seen("/tmp is read-only", made="real", finding=default.one("scratch"), check="scratch")


def test_no_place_for_temporary_files_is_an_error(examined: Examine, faults: Faults) -> None:
    closed = "; ".join(map(read_only, ("/tmp", "/var/tmp", "/srv")))
    found = examined("--only", "scratch", within=[*namespace(closed), *IN_SRV], env={"TMPDIR": None})
    seen = found.one("scratch")
    faults.seen("no place for temporary files", made="real", finding=seen, check="scratch", exit_code=77)


def test_python_takes_the_folder_that_the_plan_names(tmp_path: Path) -> None:
    program = """
import tempfile
from loradock.env_check.intent import intent
from loradock.machine import Host
print(tempfile.gettempdir() == str(intent(Host()).scratch), tempfile.gettempdir())
"""
    (tmp_path / "here").mkdir()
    taken: list[str] = []
    for named in ({"TMPDIR": "here"}, {"TMPDIR": "/nope", "TEMP": str(tmp_path)}, {"TMPDIR": "/proc"}, {"TMPDIR": ""}):
        env = {**os.environ, "TEMP": "", "TMP": "", **named}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        taken.append(done.stdout.strip())
    assert taken == [f"True {tmp_path / 'here'}", f"True {tmp_path}", "True /tmp", "True /tmp"]


def test_a_working_directory_that_was_removed_is_said_and_no_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec {sys.executable} -m loradock env-check --only storage"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr == "error: the working directory was removed\nhint: cd ~\n"


def test_what_a_killed_probe_left_is_removed_after_a_day(tmp_path: Path) -> None:
    left = {name: tmp_path / name for name in (".loradock-probe-old", ".loradock-probe-new", "mine")}
    for folder in left.values():
        folder.mkdir()
        (folder / "written").write_bytes(b"x")
    for name in (".loradock-probe-old", "mine"):
        os.utime(left[name], (0, 0))
    assert Host().try_storage(tmp_path).failed == {}
    assert sorted(each.name for each in tmp_path.iterdir()) == [".loradock-probe-new", "mine"]
