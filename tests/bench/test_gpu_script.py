"""scripts/gpu: its questions, its limits, and the rehearsal of a GPU hour on the stand-in, from a fresh checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from fakegpu.environment import CannotBeBuilt, built

from bench.gpu.questions import QUESTIONS
from bench.gpu.results import CANNOT, CUT, DONE, ENDED, Results, row
from bench.gpu.runner import END_SECONDS, MARK, Runner, sweep
from bench.gpu.steps import STEPS
from bench.gpu.steps.equality import Selected

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "fakegpu" / "run"
CHEAP = ("nvml", "read-back", "fsdp", "zero", "net-check")
CALL_SECONDS = 9 * 60
FILES = 8
"""That may come back from a machine that is lent by the hour."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, and those that git does not ignore, as they lie here: a fresh clone with today's changes."""
    try:
        built()
    except CannotBeBuilt as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("checkout") / "loradock"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    changed = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, changed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def without_network() -> list[str]:
    """What is put before a command so that it has the loopback device alone; nothing where no namespace may be made."""
    alone = ["unshare", "--map-root-user", "--net", "sh", "-ec", 'ip link set lo up; exec "$@"', "sh"]
    return alone if subprocess.run([*alone, "true"], capture_output=True).returncode == 0 else []


def command(checkout: Path, out: Path, *options: str) -> list[str]:
    """A rehearsal on the stand-in."""
    places = ("--out", str(out), "--work", str(out.with_name("work")), "--python", sys.executable)
    return [*without_network(), str(STAND_IN), str(checkout / "scripts" / "gpu"), "--tiny", *places, *options]


def environment() -> dict[str, str]:
    """A host without a venv of its own, two threads and no way out."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    return {
        **os.environ,
        **nowhere,
        "LORADOCK_VENV": "/nonexistent/venv",
        "OMP_NUM_THREADS": "1",
        "FAKEGPU_PYTHON": sys.executable,
    }


def results(out: Path) -> dict[str, Any]:
    """The steps of results.json, which is whole at every moment."""
    file = out / "results.json"
    return json.loads(file.read_text(encoding="utf-8"))["steps"] if file.exists() else {}


def rehearse(checkout: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(checkout, out, *options), env=environment(), capture_output=True, text=True)


def test_every_question_is_asked_by_a_step_or_says_why_none_can() -> None:
    asked = {number for step in STEPS for number in step.questions}
    assert {question.number for question in QUESTIONS if not question.by_hand} == asked
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_the_page_has_the_rows_of_the_questions_in_their_order() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in page if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == len(QUESTIONS)
    for line, question in zip(rows, QUESTIONS, strict=True):
        assert line.startswith(row(question)), row(question)


def test_every_step_fits_into_a_call_of_nine_minutes() -> None:
    for step in STEPS:
        assert step.limit(is_tiny=False) + 2 * END_SECONDS <= CALL_SECONDS, step.name


@pytest.mark.full
def test_the_rehearsal_ends_with_0_and_every_step_has_a_result_or_a_reason(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = rehearse(checkout, out, "--only", "nvml,demo,ceilings,read-back,fsdp")
    assert done.returncode == 0, done.stdout + done.stderr + log_of(out)
    found = results(out)
    outcomes = {name: entry["outcome"] for name, entry in found.items()}
    expected = dict.fromkeys(("nvml", "demo", "ceilings", "read-back"), DONE) | {"fsdp": CANNOT}
    assert outcomes == expected, found
    assert found["fsdp"]["reason"] == "needs 2 GPUs, this machine has 1"
    assert found["demo"]["answer"]["decided"]["device"] == "cuda"
    assert "| demo | done |" in (out / "results.md").read_text(encoding="utf-8")
    assert len(list(out.iterdir())) <= FILES
    again = rehearse(checkout, out, "--only", "nvml,demo,ceilings,read-back,fsdp")
    assert again.returncode == 0
    assert results(out) == found


def has_word(text: str, word: str, /, **_: object) -> bool:
    """As pytest's -k looks for a word in a test's name."""
    return word.lower() in text


@pytest.mark.full
def test_every_step_that_runs_tests_selects_some_in_a_rehearsal_too() -> None:
    """Here without a GPU, where the files shrink what they try."""
    options = ("--collect-only", "-q", "-o", "addopts=--import-mode=importlib")
    command = [sys.executable, "-m", "pytest", "tests/gpu", *options]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    works = [step.work for step in STEPS if isinstance(step.work, Selected)]
    assert works
    for work, is_tiny in product(works, (False, True)):
        names = [line.partition("::")[2].lower() for line in collected if line.startswith(work.file)]
        expression = Expression.compile(work.expression(is_tiny=is_tiny))
        assert any(expression.evaluate(partial(has_word, name)) for name in names), work


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_whole_rehearsal_ends_with_0_and_nothing_failed(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = 3
    while code == 3:
        done = rehearse(checkout, out, "--minutes", "15")
        code = done.returncode
    assert code == 0, done.stderr + log_of(out)
    found = results(out)
    assert found.keys() == {step.name for step in STEPS}
    bad = {name: entry for name, entry in found.items() if entry["outcome"] not in (DONE, CANNOT)}
    assert not bad
    reasons = {name: entry["reason"] for name, entry in found.items() if entry["outcome"] == CANNOT}
    assert reasons.keys() == {"fsdp", "zero", "net-check", "compile", "compile-graphs", "compile-autotune"}
    assert len(list(out.iterdir())) <= FILES


def log_of(out: Path) -> str:
    """The end of the log, for a test that failed."""
    log = out / "log.txt"
    return log.read_text(encoding="utf-8", errors="replace")[-4000:] if log.exists() else "no log"


def is_(name: str, outcome: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a step has come to that."""
    return lambda found: found.get(name, {}).get("outcome") == outcome


def kill_when(there: Callable[[dict[str, Any]], bool], checkout: Path, out: Path) -> None:
    """Start a rehearsal, and kill its process group as soon as results.json is `there`."""
    started = subprocess.Popen(
        command(checkout, out, "--only", ",".join(CHEAP)),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not there(results(out)):
        assert started.poll() is None, log_of(out)
        time.sleep(0.005)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


@pytest.mark.full
def test_killed_at_five_points_it_goes_on_and_runs_no_finished_step_again(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    points = (
        lambda _: out.exists(),  # before it knows the stack
        is_("nvml", "running"),
        is_("read-back", "running"),
        is_("fsdp", "running"),
        is_("zero", CANNOT),
    )
    ended: dict[str, Any] = {}
    for there in points:
        kill_when(there, checkout, out)
        found = results(out)
        assert {name: found[name] for name in ended} == ended
        ended = {name: entry for name, entry in found.items() if entry["outcome"] in ENDED}
    assert rehearse(checkout, out, "--only", ",".join(CHEAP)).returncode == 0
    found = results(out)
    assert {name: found[name] for name in ended} == ended
    assert {name: entry["outcome"] for name, entry in found.items()} == {
        "nvml": DONE,
        "read-back": DONE,
        **dict.fromkeys(CHEAP[2:], CANNOT),
    }
    assert max(entry["runs"] for entry in found.values()) <= 2, "only a step that was cut is run again"
    assert not sweep(out), "a process of a step was left over"


def here(folder: Path) -> Results:
    """Results of a stack that needs no GPU."""
    stack = {"gpu": "none", "gpus": 1, "memory_bytes": 0, "driver": None, "cuda": None, "python": "", "packages": {}}
    return Results.load(folder, identity="test", stack={**stack, "commit": "", "code": ""}, notes=[])


@pytest.mark.thin(4)
def test_a_step_that_is_cut_at_its_limit_three_times_is_given_up_and_named(tmp_path: Path) -> None:
    step = replace(next(step for step in STEPS if step.name == "read-back"), tiny_seconds=1)
    found = here(tmp_path)
    runner = Runner(
        steps=(step,),
        results=found,
        out=tmp_path,
        work=tmp_path / "work",
        is_tiny=True,
        deadline=time.monotonic() + 60,
        unsloth_packages="",
    )
    runner.run()
    entry = results(tmp_path)["read-back"]
    assert (entry["outcome"], entry["runs"]) == (CUT, 3)
    assert entry["reason"] == "killed at its limit of 1 s; given up after 3 runs"
    assert not runner.left()


def test_what_a_step_leaves_behind_in_another_session_is_killed(tmp_path: Path) -> None:
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)}, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path / "other")})
    try:
        assert sweep(tmp_path) == {left.pid}
        assert left.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_an_answer_of_other_code_is_kept_until_the_step_is_run_again(tmp_path: Path) -> None:
    found = here(tmp_path)
    found.put("nvml", outcome=DONE, runs=1, answer={"summary": "healthy"})
    other = Results(folder=tmp_path, identity="other", content=found.content)
    assert found.entry("nvml")["outcome"] == DONE
    assert not other.entry("nvml")
    assert "nvml: healthy" in other.markdown()


def wheel(folder: Path, *, project: str) -> Path:
    """The smallest wheel there can be, with a library as bitsandbytes names those for other releases of CUDA."""
    folder.mkdir()
    file = folder / f"{project}-1.0-py3-none-any.whl"
    info = f"{project}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{project}.py", "answer = 42\n")
        archive.writestr("libbitsandbytes_cuda118.so", "")
        archive.writestr("libbitsandbytes_cuda130.so", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


@pytest.mark.thin(4)
def test_wheels_are_installed_beside_themselves_and_a_machine_without_a_gpu_is_refused(tmp_path: Path) -> None:
    folder = wheel(tmp_path / "wheels", project="proof").parent
    told = [sys.executable, "-m", "pip", "--version"]
    pip = subprocess.run(told, capture_output=True)
    if pip.returncode:
        pytest.skip("no pip in this environment")
    options = ["--wheels", str(folder), "--out", str(tmp_path / "out"), "--python", sys.executable]
    hidden = environment() | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([ROOT / "scripts" / "gpu", *options], env=hidden, capture_output=True, text=True)
    assert done.returncode == 71
    assert "error: torch sees no GPU" in done.stderr
    assert (folder / "site-packages" / "proof.py").exists()
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_wheel_that_was_slimmed_records_what_it_still_holds(tmp_path: Path) -> None:
    file = wheel(tmp_path / "wheels", project="bitsandbytes")
    slim = [sys.executable, ROOT / "scripts" / "gpu_wheels.py", file.parent, "slim"]
    subprocess.run(slim, check=True, capture_output=True)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        record = archive.read("bitsandbytes-1.0.dist-info/RECORD").decode().splitlines()
    assert "libbitsandbytes_cuda118.so" not in names
    assert "libbitsandbytes_cuda130.so" in names
    assert [line.split(",")[0] for line in record] == names


def test_a_call_that_is_too_short_for_a_step_says_how_long_it_must_be(tmp_path: Path) -> None:
    options = ["--minutes", "2", "--only", "memory-7b", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", *options], cwd=ROOT, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 2
    assert "error: --minutes 2 is too short for the step memory-7b\nhint: --minutes 7.4" in done.stderr
