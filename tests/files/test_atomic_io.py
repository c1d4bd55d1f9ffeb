"""Files that outlive a power cut: new ones are new, replaced ones are whole, and nothing stays when it fails."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from loradock.files import atomic_io


def test_a_new_file_is_written_once_with_its_digest_and_the_mode_of_the_umask(tmp_path: Path) -> None:
    file, content = tmp_path / "file", b"x" * 100_000
    before = os.umask(0o027)
    try:
        written = atomic_io.write(file, content)
    finally:
        os.umask(before)
    assert written == atomic_io.Written(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    assert file.read_bytes() == content
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    with pytest.raises(FileExistsError):
        atomic_io.write(file, b"other")
    assert file.read_bytes() == content


@pytest.mark.parametrize("sizes", [(), (0,), (5, 100, 3), (5, 1 << 20, 7, 40 << 20, 9), (700_000,) * 5, (1 << 20, 1)])
def test_a_file_is_written_part_by_part_in_their_order_whatever_becomes_of_a_small_part_afterwards(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    parts = [os.urandom(size) for size in sizes]

    def content(sink: atomic_io.Sink) -> None:
        for part in parts:
            passing = bytearray(part)
            assert sink.write(memoryview(passing)) == len(part)
            passing[:] = bytes(len(part)) if len(part) < atomic_io.LARGE_BYTES else part

    written = atomic_io.write(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert written.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()
    assert written.size_bytes == sum(sizes)


def test_what_the_parts_are_made_by_raises_and_no_file_is_left(tmp_path: Path) -> None:
    def content(sink: atomic_io.Sink) -> None:
        sink.write(bytes(3 << 20))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        atomic_io.write(tmp_path / "file", content)
    assert list(tmp_path.iterdir()) == []


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FileExistsError):
        atomic_io.write(tmp_path / "link", b"x")
    (tmp_path / f".status.json.{os.getpid()}").symlink_to(target)
    atomic_io.replace(tmp_path / "status.json", "{}")
    assert not target.exists()
    assert (tmp_path / "status.json").read_text() == "{}"


def test_a_replaced_file_leaves_nothing_beside_it_also_when_it_fails(tmp_path: Path) -> None:
    atomic_io.replace(tmp_path / "status.json", "old")
    atomic_io.replace(tmp_path / "status.json", "new, é")
    assert (tmp_path / "status.json").read_text(encoding="utf-8") == "new, é"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_io.replace(tmp_path / "folder", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "status.json"]


def test_what_a_killed_process_of_the_same_number_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".status.json.{os.getpid()}").write_text("half")
    atomic_io.replace(tmp_path / "status.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_file_that_cannot_be_written_whole_is_removed(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            atomic_io.write(tmp_path / "file", bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_whatever_lies_at_a_path_is_cleared_and_a_link_leads_nowhere(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    file, link, folder = tmp_path / "file", tmp_path / "link", tmp_path / "folder"
    file.touch()
    link.symlink_to(kept)
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "file").touch()
    (folder / "closed").chmod(0o500)
    for each in (file, link, folder, tmp_path / "none"):
        atomic_io.clear(each)
    assert sorted(tmp_path.iterdir()) == [kept]
    assert (kept / "file").exists()
