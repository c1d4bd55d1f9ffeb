"""P1, P2, P6, P7 and P19: runs are killed, asked to end, or a system call fails: a few in CI, all with --full.

The stock Trainer fails them.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults.campaign import records, table
from faults.tracing import strace

CONTROL_TRIALS = 30
OTHER_ENGINE_TRIALS = 18


def campaign(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """`python -m faults.campaign` in a process of its own, which starts no thread before it forks."""
    paths = os.pathsep.join(str(records.ROOT / name) for name in ("src", "tests"))
    command = [sys.executable, "-m", "faults.campaign", *arguments]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=timeout
    )


def needs_strace(promise: str) -> None:
    if promise in ("P2", "P19"):
        strace()


@pytest.mark.thin(4)
@pytest.mark.parametrize("promises", [("P1", "P2"), ("P1", "P6", "P19")], ids="-".join)
def test_a_short_campaign_loses_nothing(promises: tuple[str, ...], tmp_path: Path) -> None:
    for promise in promises:
        needs_strace(promise)
    folder = str(tmp_path)
    done = campaign(*promises, "--short", "--jobs", "1", "--place", folder, "--folder", folder, timeout=900)
    assert all((tmp_path / f"{promise}.jsonl").exists() for promise in promises), done.stdout + done.stderr
    for promise in promises:
        check_short(records.lines(promise, place=tmp_path))


def check_short(lines: list[dict[str, Any]]) -> None:
    assert len(lines) >= 2
    assert [line for line in lines if line["result"] != "ok"] == []
    assert {line["engine"] for line in lines} == {"fast"}


@pytest.mark.full
def test_the_stock_trainer_fails_at_the_system_calls_of_its_save(tmp_path: Path) -> None:
    needs_strace("P2")
    arguments = ("--subject", "stock", "--short", "--jobs", "1", "--place", str(tmp_path), "--folder", str(tmp_path))
    done = campaign("P2", *arguments, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [line["result"] for line in records.lines("P2", place=tmp_path)]
    assert results.count("refused") >= len(results) / 2, results


@pytest.mark.full
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("promise", ["P1", "P2", "P6", "P19"])
def test_a_whole_campaign_loses_nothing(promise: str) -> None:
    needs_strace(promise)
    done = campaign(promise, timeout=6 * 3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("promise", ["P1", "P2", "P6", "P19"])
def test_the_other_engine_loses_nothing_either(promise: str) -> None:
    needs_strace(promise)
    done = campaign(promise, "--engine", "peft", "--trials", str(OTHER_ENGINE_TRIALS), timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("promise", ["P1", "P2"])
def test_the_stock_trainer_fails_the_same_campaign(promise: str) -> None:
    needs_strace(promise)
    done = campaign(promise, "--subject", "stock", "--trials", str(CONTROL_TRIALS), timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in records.lines(promise) if line["subject"] == "stock"]
    failed = [line for line in lines[-CONTROL_TRIALS:] if line["result"] != "ok"]
    assert len(failed) > CONTROL_TRIALS / 3


def test_the_page_says_what_the_last_full_run_found(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):  # which writes it when all have run
        assert table.PAGE.read_text(encoding="utf-8") == table.text(), (
            "run faults.campaign --table > docs/reliability.md"
        )


def test_trials_are_packed_into_one_file_and_lose_nothing(tmp_path: Path) -> None:
    trials = [
        {"promise": promise, "subject": "loradock", "trial": trial} for promise in ("P1", "P6") for trial in (1, 2)
    ]
    wanted = [records.append({**trial, "result": "ok"}, place=tmp_path) for trial in trials]
    with (tmp_path / "P6.jsonl").open("a") as stream:
        stream.write('{"promise": "P6", "tr')  # of a campaign that was killed
    records.pack(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [records.PACKED]
    again = records.append({**trials[0], "result": "differs"}, place=tmp_path)
    assert [line for promise in ("P1", "P6") for line in records.lines(promise, place=tmp_path)] == [again, *wanted[1:]]


def test_a_trial_that_ends_while_others_are_packed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.append({"promise": "P1", "subject": "loradock", "trial": 1}, place=tmp_path)
    real = fcntl.flock

    def packed_meanwhile(stream: Any, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        records.pack(tmp_path)
        real(stream, operation)

    monkeypatch.setattr(fcntl, "flock", packed_meanwhile)
    records.append({"promise": "P1", "subject": "loradock", "trial": 2}, place=tmp_path)
    assert [line["trial"] for line in records.lines("P1", place=tmp_path)] == [1, 2]
