"""Files from outside, spoilt in thousands of ways, end with a documented code, soon, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commit import commit, turn_of
from fuzz.kinds import KINDS

ROOT = Path(__file__).parents[2]
PARTS = 6


def campaign(*arguments: str, module: str = "fuzz") -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))}


@pytest.mark.timeout(2700)
@pytest.mark.thin(2)
def test_no_mutant_ends_otherwise_than_documented() -> None:
    """A sixth of the kinds; the commit chooses which."""
    kinds = KINDS[turn_of(commit(), PARTS) :: PARTS]
    campaign("--mutants", "30", *(word for kind in kinds for word in ("--kind", kind.name)))


@pytest.mark.full
@pytest.mark.timeout(6 * 3600)
def test_no_mutant_of_a_whole_campaign_ends_otherwise_than_documented() -> None:
    campaign("--mutants", "5000", "--first", "1000")


@pytest.mark.thin(6)
def test_no_command_waits_for_what_is_no_file_or_reads_it_without_an_end() -> None:
    """Those that once did; what needs no training."""
    obstacles = ("--obstacle", "fifo", "--obstacle", "endless device", "--obstacle", "sparse")
    files = ("run.tar, bundle verify", "manifest.json, checkpoint list", "metrics.jsonl, runs", "run.yaml, config show")
    campaign(*obstacles, *(word for each in files for word in ("--file", each)), module="fuzz.obstacles")


@pytest.mark.full
@pytest.mark.timeout(3 * 3600)
def test_no_command_does_so_whatever_lies_in_the_place_of_any_file_that_is_read() -> None:
    campaign(module="fuzz.obstacles")
