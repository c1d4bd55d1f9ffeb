"""P5: a volume that is full leaves the checkpoint before as it was, nothing half written, and the exit code 73."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from env_check.conftest import namespace
from faults.conftest import Trial

PROGRAM = Path(__file__).with_name("filling.py")
SIZES_KIB = range(74, 274, 10)  # the old one takes 64, the new one 212; what is asked for is rounded up to 4


def test_a_full_volume_leaves_the_checkpoint_before_and_no_debris(
    tmp_path: Path, trial: Trial, pytestconfig: pytest.Config
) -> None:
    sizes = SIZES_KIB if pytestconfig.getoption("--full") else SIZES_KIB[::5]
    command = [*namespace(":"), sys.executable, str(PROGRAM), str(tmp_path), *map(str, sizes)]
    path = {"PYTHONPATH": f"{PROGRAM.parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path})
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        is_kept = found["codes"] == [0, 73, 77] and found["good"] == 10 and not found["lines"]
        trial("P5", is_kept and found["names"] == ["checkpoint-10"], **found)
