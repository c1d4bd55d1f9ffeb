"""Other versions of a library than the lock's, laid over this environment: a folder for PYTHONPATH, installed by hash.

A lock of tests/locks holds nothing but what differs; what is beside it is this environment's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

LOCKS = Path(__file__).with_name("locks")


@cache
def overlay(name: str) -> Path:
    """The folder with what `tests/locks/NAME.lock` names; skipped where no package index can be reached."""
    folder = Path(tempfile.mkdtemp(prefix=f"loradock-{name}-"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run([*command, "--target", folder, "-r", LOCKS / f"{name}.lock"], capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"no {name} without a package index")
    assert done.returncode == 0, done.stderr
    return folder
