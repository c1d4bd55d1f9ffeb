"""The entrypoint, run as a shell script with a loradock that says what it was given."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[2] / "entrypoint"
SPEAKS = '#!/bin/sh\necho "args: $*"\nenv\nmkdir -p "$TRITON_CACHE_DIR"\ntouch "$TMPDIR/made"\n'


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "loradock").write_text(SPEAKS, encoding="utf-8")
    (folder / "loradock").chmod(0o755)
    return folder


def start(bin_folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["sh", str(ENTRYPOINT), *args], capture_output=True, text=True, env={"PATH": path, **environ}, timeout=120
    )


def said(done: subprocess.CompletedProcess[str]) -> Mapping[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_the_caches_are_private_and_below_the_first_writable_directory(bin_folder: Path, tmp_path: Path) -> None:
    environ = said(start(bin_folder, "train", TMPDIR=str(tmp_path), HOME="/"))
    scratch = Path(environ["TRITON_CACHE_DIR"]).parent
    assert scratch.parent == tmp_path
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert Path(environ["HOME"]).parent == scratch
    assert environ["HF_HOME"].startswith(environ["HOME"])
    assert environ["LORADOCK_HEARTBEAT"] == str(scratch / "heartbeat")
    assert environ["USER"] == environ["LOGNAME"] != ""


def test_a_home_of_our_own_is_kept(bin_folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert said(start(bin_folder, HOME=str(home)))["HOME"] == str(home)


def test_a_home_that_is_a_link_is_not_followed(bin_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "home").symlink_to(target)
    environ = said(start(bin_folder, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path)))
    assert environ["HOME"] != str(tmp_path / "home")
    assert list(target.iterdir()) == []


def test_a_planted_name_is_not_used(bin_folder: Path, tmp_path: Path) -> None:
    for name in ("loradock", "loradock-AAAAAAAA", "triton", "home"):
        (tmp_path / name).symlink_to("/etc")
    environ = said(start(bin_folder, TMPDIR=str(tmp_path), HOME="/"))
    assert not Path(environ["TRITON_CACHE_DIR"]).parent.is_symlink()


def test_what_the_user_set_is_kept(bin_folder: Path, tmp_path: Path) -> None:
    wanted = {"HF_HOME": "/models", "TRITON_CACHE_DIR": str(tmp_path / "t"), "USER": "ann", "XDG_CACHE_HOME": "/c"}
    environ = said(start(bin_folder, HOME="/", **wanted))
    assert {name: environ[name] for name in wanted} == wanted


def test_files_are_writable_for_the_group(bin_folder: Path, tmp_path: Path) -> None:
    said(start(bin_folder, TMPDIR=str(tmp_path), HOME="/"))
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o664


@pytest.mark.parametrize(
    ("args", "heard"),
    [
        ((), "args: --help"),
        (("train", "--demo", "a b"), "args: train --demo a b"),
        (("loradock", "train", "--demo", "a b"), "args: train --demo a b"),
        (("loradock",), "args: --help"),
        (("loradock", "--version"), "args: --version"),
    ],
)
def test_the_arguments_reach_the_command_line(bin_folder: Path, args: tuple[str, ...], heard: str) -> None:
    assert heard in start(bin_folder, *args, HOME="/").stdout


def test_a_person_gets_a_shell(bin_folder: Path) -> None:
    assert start(bin_folder, "bash", "-c", "echo $((40 + 2))", HOME="/").stdout == "42\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_group_before_the_start_ends_with_76(
    bin_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """tini passes signals to the whole group, so what the script waits for ends too."""
    slow = bin_folder / "mktemp"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/waits\nexec sleep 20\n", encoding="utf-8")
    slow.chmod(0o755)
    with subprocess.Popen(
        ["sh", str(ENTRYPOINT), "train"],
        env={"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": "/"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not (tmp_path / "waits").exists():
            time.sleep(0.01)
        os.killpg(process.pid, number)
        _, words = process.communicate(timeout=120)
    assert process.returncode == 76
    assert "stopped by a signal" in words


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_without_a_place_for_programs_it_refuses_and_says_what_to_add(bin_folder: Path, tmp_path: Path) -> None:
    script = (
        f"for place in /tmp /var/tmp {tmp_path}; do mount -t tmpfs -o noexec none $place; done; "
        f"mkdir {bin_folder}; cd /proc; HOME=/ sh /dev/fd/3 train"
    )
    with ENTRYPOINT.open("rb") as program:
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", f"exec 3<&{program.fileno()}; {script}"],
            capture_output=True,
            text=True,
            pass_fds=[program.fileno()],
            timeout=120,
        )
    assert done.returncode == 71
    assert "--tmpfs /tmp:rw,exec,nosuid,nodev" in done.stderr
