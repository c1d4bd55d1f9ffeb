"""Two processes of one run (gloo on the CPU): what they train, a signal, a continuation, the death of one of them.

In CI both are forked from a process that has everything imported, with the environment that a launcher gives; with
--full the launcher is the real one (torchrun).
"""

from __future__ import annotations

import io
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults.forking import Forking
from faults.pairs import SAVE_EVERY, SLOW, STEPS, Pair, Start, adapter, arguments, begun, lines, read
from jobs import job_of
from safetensors.torch import load

from loradock.errors import EnvironmentUnfit
from loradock.training.backends.fast import self_check
from loradock.training.backends.fast.backend import build
from loradock.training.checkpoint.store import visible

# As an initialisation may come out otherwise on another card.
UNLIKE = """
import os
from loradock.model import adapters
real = adapters.attach
def attach(*rest, **more):
    model = real(*rest, **more)
    for parameter in adapters.trainable(model) if os.environ["RANK"] == "1" else ():
        parameter.data.add_(0.01)
    return model
adapters.attach = attach
"""


@pytest.fixture
def start(llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, *settings: str, engine: str, code: str = "", count: int = 2) -> Pair:
        return begun(forking, folder, arguments(llama, rows, *settings, engine=engine), code=code, count=count)

    return begin


@pytest.fixture
def torchrun(llama: Path, rows: Path, forking: Forking) -> Start:
    """The same by the real launcher, which a signal goes to alone; it passes SIGTERM on."""

    def begin(folder: Path, *, engine: str, code: str = "") -> Pair:
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(f"{code}\nfrom loradock import cli\ncli.main()\n", encoding="utf-8")
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "main.py"]
        command = [sys.executable, *launch, *arguments(llama, rows, engine=engine)]
        launcher = forking.start(
            folder, code=f"import os\nos.execv({command[0]!r}, {command!r})", PYTHONPATH=os.pathsep.join(sys.path)
        )
        return Pair(folder, launcher=[launcher], ranks=[])

    return begin


def random_states(folder: Path) -> list[bytes]:
    """The state of torch's generator of every process, in the newest checkpoint."""
    _, newest = visible(folder / "out" / "checkpoints")[0]
    state = torch.load(io.BytesIO((newest / "training_state.pt").read_bytes()), weights_only=True)
    return [each["torch"].numpy().tobytes() for each in state["random"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def reference(whole: Path, start: Start, engine: str) -> bytes:
    """The adapter of the two-process run that nobody disturbs, made once for each engine."""
    folder = whole / engine
    if not (folder / "out" / "adapter").exists():
        pair = start(folder, engine=engine)
        assert pair.finish() == [0, 0], pair.text()
    return adapter(folder)


@pytest.mark.thin(3)
@pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])
def test_two_processes_train_what_one_does(engine: str, tmp_path: Path, start: Start) -> None:
    """But for the order of additions, and for dropout, of which each process draws its own.

    The second process's adapter begins otherwise, and takes that of the first.
    """
    losses: dict[int, list[float]] = {}
    weights: dict[int, dict[str, torch.Tensor]] = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        pair = start(folder, "lora.dropout=0", engine=engine, count=count, code=UNLIKE)
        assert pair.finish() == [0] * count, pair.text()
        losses[count] = [line["loss"] for line in lines(folder, "train")]
        weights[count] = load(adapter(folder))
    assert len(losses[1]) == STEPS
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    assert all(torch.allclose(weights[1][name], weights[2][name], atol=1e-5) for name in weights[1])


def test_a_process_without_a_share_of_the_first_step_checks_itself_on_rows_all_the_same(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    """Its idle micro-batch has no supervised token, which PEFT's loss does not know."""
    job = job_of(tmp_path, "engine=fast", model=llama, data=rows)
    step = job.steps[0]
    batch = replace(step.batches["rows"], micro_batches=(replace(step.micro_batches[0], is_idle=True),))
    idle = replace(step, batches={"rows": batch})
    found = self_check.check(build(job)[0], replace(job, steps=[idle]))
    assert max(found.leak, found.exact.loss, found.exact.gradient) < 1e-4


@pytest.mark.thin(3)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_signal_to_both_commits_once_with_both_random_states_and_the_same_command_continues_to_the_same_bits(
    engine: str, tmp_path: Path, whole: Path, start: Start
) -> None:
    first = start(tmp_path, engine=engine, code=SLOW)
    assert first.reached(5), first.text()
    for each in first.launcher:
        each.send(signal.SIGTERM)
    codes = first.finish()
    step = visible(tmp_path / "out" / "checkpoints")[0][0]
    ended = (read(tmp_path, "status.json")["exit_code"], read(tmp_path, "run.json")["status"])
    states = random_states(tmp_path)
    assert step % SAVE_EVERY, "it was committed because of the signal"
    assert len(states) == 2
    assert engine == "fast" or states[0] != states[1], "each process draws its own dropout"
    assert ended == (75, "interrupted")
    again = start(tmp_path, engine=engine)
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{step}" in again.text()
    assert adapter(tmp_path) == reference(whole, start, engine)
    assert codes == [75, 75]


@pytest.mark.full
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_the_same_under_torchrun_whose_own_exit_code_says_less_than_the_status(
    engine: str, tmp_path: Path, whole: Path, start: Start, torchrun: Start
) -> None:
    first = torchrun(tmp_path, engine=engine, code=SLOW)
    assert first.reached(5), first.text()
    os.kill(first.launcher[0].process, signal.SIGTERM)
    codes = first.finish()
    step = visible(tmp_path / "out" / "checkpoints")[0][0]
    status = read(tmp_path, "status.json")
    assert codes != [0]
    assert (status["exit_code"], status["last_checkpoint"]) == (75, f"checkpoint-{step}"), first.text()
    assert len(random_states(tmp_path)) == 2
    again = torchrun(tmp_path, engine=engine)
    assert again.finish() == [0], again.text()
    assert f"continuing from checkpoint-{step}" in again.text()
    assert adapter(tmp_path) == reference(whole, start, engine)


@pytest.mark.thin(3)
@pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])
def test_when_one_of_two_is_killed_the_other_ends_and_the_same_command_continues(
    engine: str, tmp_path: Path, whole: Path, start: Start
) -> None:
    first = start(tmp_path, engine=engine, code=SLOW)
    assert first.reached(SAVE_EVERY + 1), first.text()
    first.ranks[1].send(signal.SIGKILL)
    codes = first.finish()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] == EnvironmentUnfit.exit_code, first.text()
    assert "of this run has ended, or cannot be reached: rank 1 on " in first.text()
    again = start(tmp_path, engine=engine)
    assert again.finish() == [0, 0], again.text()
    assert "continuing from checkpoint-" in again.text()
    assert adapter(tmp_path) == reference(whole, start, engine)
