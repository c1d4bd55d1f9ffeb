"""bench/train from end to end on a tiny model: real processes, real NF4, real peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proven import unchecked

from bench.train.lines import read

ROOT = Path(__file__).parents[2]
SIZE = [
    "--models",
    "tiny",
    "--samples",
    "4",
    "--steps",
    "3",
    "--warmup-steps",
    "1",
    "--repeats",
    "1",
]


def bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command with its results in `folder`."""
    places = ["--work", str(folder / "work"), "--results", str(folder), "--name", "here", "--floor-seconds", "0"]
    command = [
        sys.executable,
        "-m",
        "bench.train",
        "--device",
        "cpu",
        *SIZE,
        *places,
        unchecked("six runs of a benchmark"),
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def slices(folder: Path) -> dict[str, dict[str, Any]]:
    """The lines by arm."""
    return {line["arm"]: line for line in read(folder / "here.jsonl")}


@pytest.mark.full
def test_an_arm_is_run_once_and_the_same_command_then_has_nothing_left_to_do(tmp_path: Path) -> None:
    done = bench(tmp_path, "--arms", "unsloth", "trl-best")
    assert done.returncode == 0, done.stderr
    assert "unsloth is left out" in done.stderr
    (found,) = slices(tmp_path).values()
    assert (found["arm"], found["status"], found["steps"]["samples"]) == ("trl-best", "done", [4, 4, 4])
    assert found["steps"]["seconds"] == sorted(found["steps"]["seconds"])
    assert found["summary"]["peak_rss_bytes"] > 2**28
    assert (tmp_path / "here.png").stat().st_size > 1000
    again = bench(tmp_path, "--arms", "trl-best", "--steps", "3")
    assert again.returncode == 0
    assert len((tmp_path / "here.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert "| trl-best |" in again.stdout


@pytest.mark.full
def test_every_arm_sees_the_same_rows_from_the_same_adapter_and_begins_at_the_same_loss(tmp_path: Path) -> None:
    done = bench(tmp_path, "--arms", "trl-vanilla", "trl-best", "trl-text", "ours-trl", "ours")
    assert done.returncode == 0, done.stderr
    found = slices(tmp_path)
    assert {line["status"] for line in found.values()} == {"done"}
    assert len({tuple(line["steps"]["tokens"]) for line in found.values()}) == 1
    assert len({tuple(line["steps"]["supervised_tokens"]) for line in found.values()}) == 1
    first = [line["steps"]["loss"][0] for line in found.values()]
    assert max(first) - min(first) < 1e-4


@pytest.mark.full
def test_a_slice_ends_when_its_time_is_up_and_keeps_the_steps_that_it_made(tmp_path: Path) -> None:
    done = bench(tmp_path, "--arms", "ours", "trl-best", "--steps", "2000", "--slice-seconds", "45")
    assert done.returncode == 0, done.stderr
    found = slices(tmp_path)
    assert {line["status"] for line in found.values()} == {"cut"}
    assert all(1 < len(line["steps"]["step"]) < 2000 for line in found.values())


@pytest.mark.full
def test_a_command_that_runs_out_of_time_says_so_and_goes_on_when_it_is_given_again(tmp_path: Path) -> None:
    options = ["--arms", "trl-best", "--slice-seconds", "100"]
    late = bench(tmp_path, *options, "--total-seconds", "50")
    assert late.returncode == 3
    assert "1 slice(s) are left" in late.stderr
    assert bench(tmp_path, *options).returncode == 0
    assert slices(tmp_path)["trl-best"]["status"] == "done"
