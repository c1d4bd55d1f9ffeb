"""A file from outside is read only where it is a file, and of a size that such a file has."""

from __future__ import annotations

import ast
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loradock.files import regular

pytestmark = pytest.mark.thin(1)

SOURCES = Path(__file__).parents[2] / "src" / "loradock"
ROOMS = (
    *("commands", "config", "data", "distributed", "env_check", "model", "plan", "training", "use"),
    *("analysis/report", "delivery/image/bundle"),
)
"""What reads directories that somebody hands over."""
OF_ITS_OWN = {
    "commands/launch.py": "the log of a process that it started",
    "data/cache.py": "a lock that it has looked at",
    "data/bounded.py": "/proc",
    "data/prepared.py": "what the cache has looked at",
    "distributed/rendezvous.py": "words in the launcher's own folder",
    "distributed/watchdog.py": "/proc",
    "delivery/image/bundle/create.py": "files that it has looked at",
    "delivery/image/bundle/load.py": "what it is writing",
    "training/observers/monitoring/sampler.py": "what it is writing",
    "training/checkpoint/export.py": "what it has written",
    "training/run_dir/output_lock.py": "a lock that it has looked at",
}


def as_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(file))


def as_sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 30)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is a FIFO, not a regular file"),
        (as_socket, "it is a socket, not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "it is a character device, not a regular file"),
        (lambda file: file.symlink_to("/dev/full"), "it is a character device, not a regular file"),
        (Path.mkdir, "Is a directory"),
        (lambda file: file.symlink_to(file.name), "Too many levels of symbolic links"),
        (as_sparse, "it has 1,073,741,824 bytes, where 67,108,864 are the most that is plausible"),
        (Path.exists, "No such file or directory"),
    ],
)
def test_what_is_no_file_is_refused_at_once_with_the_reason(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "x"
    make(file)
    signal.alarm(20)
    try:
        with pytest.raises(OSError, match=said) as caught:
            regular.read(file)
    finally:
        signal.alarm(0)
    assert caught.value.filename == str(file)
    assert caught.value.strerror == said


def test_a_file_and_a_link_to_one_are_read_and_one_byte_too_many_is_not(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("x")
    assert regular.read(tmp_path / "link", most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, where 4 are"):
        regular.read(tmp_path / "x", most_bytes=4)
    assert regular.read(Path("/proc/self/status")).startswith(b"Name:")


def reads(tree: ast.AST) -> Iterator[int]:
    """Lines that open a file to read it, other than by the door or by the host of the facts."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if called.startswith("regular.") or "host." in called or "resources." in called or "files(" in called:
            continue
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        is_whole = name in {"read_text", "read_bytes"} and called != "self.read_bytes"
        is_opened = name == "open" and any(mode in {"r", "rb", "rt", "r+b"} for mode in modes)
        is_handle = called == "os.open" and "O_RDONLY" in ast.unparse(node) and "O_DIRECTORY" not in ast.unparse(node)
        if is_whole or is_opened or is_handle:
            yield node.lineno


def test_every_room_that_reads_what_is_handed_over_reads_it_by_the_one_door() -> None:
    found = {
        f"{file.relative_to(SOURCES)}:{line}"
        for room in ROOMS
        for file in (SOURCES / room).rglob("*.py")
        for line in reads(ast.parse(file.read_text(encoding="utf-8")))
        if str(file.relative_to(SOURCES)) not in OF_ITS_OWN
    }
    assert not found, "read it by loradock.files.regular"
