"""The default command on a real pretrained model: SmolLM2-135M-Instruct (its weights passed through 4 bits, Q4_1).

Everything here is a process as a user starts it, with its environment check. The commands are kept on one CPU: another
test runs beside, and threads that wait for one another would turn that into minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from proven import knowing
from real.conftest import Real

# A test has up to three commands, each with its environment check.
pytestmark = [pytest.mark.thin(1, together=True), pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
ROWS, HELD_OUT = HERE / "rows.jsonl", HERE / "heldout.jsonl"
STEPS = 6
LIMIT_SECONDS = 800.0
RUN = (
    *("--batch-size", "6", "--max-steps", str(STEPS), "--output", "out"),
    *("--set", f"data.validation={HELD_OUT}", "--set", "evaluation.every=3", "--set", "checkpoints.every=3"),
    *("--set", "train.schedule=constant", "--set", "train.warmup=0", "--set", "logging.every=1"),
)


@contextmanager
def one_cpu() -> Iterator[None]:
    """What is started within is kept on one of this process's CPUs."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def started(folder: Path, cache: Path, *command: str) -> subprocess.Popen[bytes]:
    """A Python in `folder` that runs a command line, its output in the file log there."""
    environment = {**os.environ, "LORADOCK_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    with (folder / "log").open("ab") as log, one_cpu():
        return subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, stdout=log, stderr=log)


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which does not outlive the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Run:
    """What a run left in `folder`."""

    folder: Path
    cache: Path

    def begin(self, model: Path) -> subprocess.Popen[bytes]:
        """The command, for the first time or again."""
        return started(
            self.folder, self.cache, "-m", "loradock", "train", "--model", str(model), "--data", str(ROWS), *RUN
        )

    def finish(self, model: Path) -> None:
        """The command to its end."""
        with ending(self.begin(model)) as process:
            assert process.wait(LIMIT_SECONDS) == 0, self.text()

    def text(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def adapter(self) -> Path:
        return self.folder / "out" / "adapter"

    def losses(self, kind: str) -> list[float]:
        lines = (self.folder / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [line["loss"] for line in map(json.loads, lines) if line["kind"] == kind]

    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / "out" / "run.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(real: Real) -> Path:
    return real("smollm2")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody disturbs."""
    run = Run(tmp_path_factory.mktemp("whole"), knowing(tmp_path_factory.mktemp("real") / "cache"))
    run.finish(model)
    return run


def computed(*arguments: str | Path) -> Any:
    """What TRL or PEFT computes, in a process without loradock."""
    with one_cpu():
        command = [sys.executable, str(HERE / "reference.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_loss_and_the_held_out_loss_fall_and_the_environment_was_checked(whole: Run) -> None:
    trained, held_out = whole.losses("train"), whole.losses("eval")
    assert len(trained) == STEPS
    assert trained[-1] < 0.75 * trained[0]
    assert held_out[-1] < 0.9 * held_out[0]
    record = whole.record()
    assert record["env_check"]["level"] == "compute"
    assert {finding["severity"] for finding in record["env_check"]["findings"]} <= {"ok", "warning"}


@pytest.mark.full
def test_the_losses_are_those_of_trls_own_trainer(whole: Run, model: Path) -> None:
    reference = computed("train", model, ROWS, "3")
    ours = whole.losses("train")[:3]
    assert ours[0] == pytest.approx(reference[0], rel=1e-5)
    assert ours == pytest.approx(reference, rel=1e-3)


def test_in_plain_peft_the_adapter_has_the_held_out_loss_that_the_run_recorded(whole: Run, model: Path) -> None:
    assert computed("loss", model, HELD_OUT, whole.adapter) == pytest.approx(whole.losses("eval")[-1], rel=1e-5)


@pytest.mark.full
def test_a_run_that_is_stopped_half_way_goes_on_to_the_same_bits(whole: Run, model: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, whole.cache)
    process = run.begin(model)
    until = time.monotonic() + LIMIT_SECONDS
    with ending(process):
        while f"step 2/{STEPS}" not in run.text():
            assert process.poll() is None, run.text()
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 75, run.text()
    run.finish(model)
    assert run.record()["resumed_from"] is not None
    assert (run.losses("train"), run.losses("eval")) == (whole.losses("train"), whole.losses("eval"))
    weights = "adapter_model.safetensors"
    assert (run.adapter / weights).read_bytes() == (whole.adapter / weights).read_bytes()
