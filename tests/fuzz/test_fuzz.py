"""Files from outside, spoilt in thousands of ways, end with a documented code, soon, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def campaign(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))}


@pytest.mark.timeout(2700)
def test_no_mutant_of_any_kind_ends_otherwise_than_documented() -> None:
    campaign("--mutants", "500")


@pytest.mark.full
@pytest.mark.timeout(6 * 3600)
def test_no_mutant_of_a_whole_campaign_ends_otherwise_than_documented() -> None:
    campaign("--mutants", "5000", "--first", "1000")
