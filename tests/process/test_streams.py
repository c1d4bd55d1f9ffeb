"""stdout and stderr whose reader is gone, stands still or was never there: the program goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.thin(1)

SAYS = """
import json, os, sys
from loradock.process import streams
streams.PATIENCE_SECONDS = 0.5
streams.install()
for number in range(3000):
    print(f"line {number} " + "x" * 60, file=sys.stderr)
print("done")
sys.stdout.flush()
os.write(int(sys.argv[1]), json.dumps(streams.lost()).encode())
"""


def ended(stdout: int, stderr: int, *, shell: str = "") -> tuple[int, str]:
    """The exit code of a program that writes 200 kB to stderr, and what it found lost."""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", SAYS, str(writing)]
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, pass_fds=(writing,))
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    return process.wait(60), text


def test_a_reader_that_ended_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert ended(writing, writing) == (0, '{"stderr": "Broken pipe", "stdout": "Broken pipe"}')
    os.close(writing)


def test_a_reader_that_stands_still_is_waited_for_once() -> None:
    reading, writing = os.pipe()
    began = time.monotonic()
    code, lost = ended(subprocess.DEVNULL, writing)
    assert (code, "did not read for" in lost) == (0, True)
    assert time.monotonic() - began < 20
    os.close(writing)
    os.close(reading)


def test_a_full_disk_behind_stdout_is_noted() -> None:
    assert ended(subprocess.DEVNULL, subprocess.DEVNULL, shell=">/dev/full") == (
        0,
        '{"stdout": "No space left on device"}',
    )


def test_closed_descriptors_are_as_dev_null() -> None:
    assert ended(subprocess.DEVNULL, subprocess.DEVNULL, shell=">&- 2>&- <&-") == (0, "{}")


def test_what_is_read_is_complete_and_in_order() -> None:
    reading, writing = os.pipe()
    program = [sys.executable, "-c", SAYS, str(writing)]
    done = subprocess.run(program, pass_fds=(writing,), capture_output=True, text=True)
    assert [line.split()[1] for line in done.stderr.splitlines()] == [str(number) for number in range(3000)]
    assert done.stdout == "done\n"
    os.close(writing)
    os.close(reading)
