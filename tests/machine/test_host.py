"""The door to the machine: what this one really answers, and which GPUs CUDA_VISIBLE_DEVICES leaves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from loradock.machine import Host
from loradock.machine.gpus import visible

GPUS = [("0", "GPU-aaaa-1111"), ("1", "GPU-aaaa-2222"), ("2", "GPU-bbbb-3333")]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-bbbb", [2]),
        ("GPU-aaaa-2", [1]),
        ("GPU-aaaa-2222,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("1,9,0", [1]),
        ("7", []),
        ("GPU-cccc,0", []),
        ("0,,1", [0]),
        ("NoDevFiles", []),
    ],
)
def test_the_gpus_that_are_visible_are_those_that_cuda_would_show(wanted: str | None, found: list[int]) -> None:
    assert visible(GPUS, wanted) == found


def test_a_file_that_is_missing_or_a_directory_reads_as_none(tmp_path: Path) -> None:
    host = Host()
    (tmp_path / "limit").write_bytes(b"12\xff\n")
    assert host.read_text(str(tmp_path / "limit")) == "12\ufffd\n"
    assert host.read_text(str(tmp_path / "missing")) is None
    assert host.read_text(str(tmp_path)) is None
    assert (host.exists(str(tmp_path)), host.exists(str(tmp_path / "missing"))) == (True, False)


def test_a_command_that_fails_is_missing_or_hangs_prints_none() -> None:
    host = Host()
    assert host.output_of([sys.executable, "-c", "print(' 7 ')"]) == "7"
    assert host.output_of([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert host.output_of(["no-such-command-here"]) is None
    assert host.output_of([sys.executable, "-c", "import time; time.sleep(60)"], timeout_seconds=0.2) is None


def test_this_machine_has_processors_memory_and_the_running_python() -> None:
    host = Host()
    assert 1 <= host.cpus_allowed() <= (os.cpu_count() or 1)
    assert host.memory_bytes() > 256 << 20
    assert host.python() == ".".join(map(str, sys.version_info[:3]))
    assert host.package_version("click")
    assert host.package_version("no-such-package-here") is None
