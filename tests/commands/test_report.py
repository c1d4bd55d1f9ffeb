"""`loradock report`: where it writes, what it prints, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from analysis.report.made_runs import made_run

pytestmark = pytest.mark.thin(2)

COMMAND = (sys.executable, "-m", "loradock", "report")


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, cwd=folder)


def test_the_report_of_a_run_lies_in_it(tmp_path: Path) -> None:
    made_run(tmp_path / "run")
    done = report(tmp_path, "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "run/report.html\n", "")
    assert "<!DOCTYPE html>" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert not list((tmp_path / "run").glob(".report*"))


def test_the_report_of_several_runs_is_named_after_them(tmp_path: Path) -> None:
    for name in "abcde":
        made_run(tmp_path / name, steps=3)
    assert report(tmp_path, "a", "b").stdout == "report-a-vs-b.html\n"
    assert report(tmp_path, *"abcde").stdout == "report-a-vs-b-vs-c-vs-2-more.html\n"


def test_output_names_the_file_and_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    made_run(tmp_path / "run")
    (tmp_path / "page.html").write_text("old", encoding="utf-8")
    assert report(tmp_path, "run", "--output", "page.html").stdout == "page.html\n"
    assert "<!DOCTYPE html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nowhere"], 66, "there is no run in nowhere"),
        (["run", "rnu"], 66, "hint: did you mean run?"),
        (["run", "--port", "8000"], 64, "--port is for --watch"),
        (["run", "--watch", "--output", "x.html"], 64, "--watch writes no file"),
        (["run", "--output", "no where/x.html"], 77, "hint: mkdir -p 'no where'"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_told_with_its_code(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    made_run(tmp_path / "run", steps=2)
    done = report(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_run_is_found_by_its_record_or_as_the_only_one_of_its_folder(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "first", steps=2)
    for named in ("runs/first/run.json", "runs"):
        done = report(tmp_path, named)
        assert (done.returncode, done.stdout) == (0, "runs/first/report.html\n"), done.stderr


def test_of_a_folder_of_several_runs_each_is_named_the_newest_first(tmp_path: Path) -> None:
    for age, name in ((50, "old"), (10, "new"), (90, "oldest")):
        record = made_run(tmp_path / "runs" / name, steps=2) / "run.json"
        os.utime(record, (1e9 - age, 1e9 - age))
    done = report(tmp_path, "runs")
    assert (done.returncode, done.stdout) == (66, "")
    assert "runs is a folder of several runs: runs/new, runs/old, runs/oldest" in done.stderr
    assert "hint: loradock report runs/new (the newest)" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_serves_the_page_until_it_is_asked_to_end(tmp_path: Path, number: signal.Signals) -> None:
    made_run(tmp_path / "run")
    before = sorted(os.listdir(tmp_path / "run"))
    command = [*COMMAND, "run", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as watching:
        assert watching.stdout
        address = watching.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"<title>run - loradock report" in answer.read()
        watching.send_signal(number)
        rest, said = watching.communicate(timeout=60)
    assert (watching.returncode, rest) == (0, "")
    assert said.splitlines()[-1] == "ended"
    assert sorted(os.listdir(tmp_path / "run")) == before
