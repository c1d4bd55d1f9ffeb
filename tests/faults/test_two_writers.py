"""P10, on whole runs: the same command given twice trains once; the lock itself is tried in test_lock.py."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.conftest import Trial
from faults.forking import Command, Forking
from proven import unchecked

from loradock.errors import Locked
from loradock.training.checkpoint.store import found

STEPS = 12
RUN = ("--set", "train.global_batch=4", "--set", "lora.rank=4", "--set", "logging.every=1")
# After each step it waits until the file `on` is there, so that the other command meets it while it trains.
SLOW = """
import time
from pathlib import Path
from loradock.training.cadence import Flow
real = Flow.after
def after(self, step):
    while not Path("on").exists(): time.sleep(0.02)
    return real(self, step)
Flow.after = after
"""

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path, llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(*settings: str, code: str = "", output: str | None = "out") -> Command:
        into = ("--output", output) if output else ()
        steps = ("--max-steps", str(STEPS), "--set", "checkpoints.every=3", "--set", "checkpoints.keep=9")
        inputs = ("--model", str(llama), "--data", str(rows))
        return forking.start(
            tmp_path, "train", *inputs, *into, *RUN, *steps, unchecked("two writers"), *settings, code=code
        )

    return begin


def mixed(run: Path) -> list[str]:
    """What tells that a second run wrote in this directory: each step once, each checkpoint good and of this run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    checkpoints = found(run / "checkpoints")
    flaws = [f"{each.path.name}: {each.problem}" for each in checkpoints if each.problem]
    flaws += [f"{each.path.name} is of {each.run_id}" for each in checkpoints if each.run_id != record["run_id"]]
    if steps != list(range(1, STEPS + 1)):
        flaws.append(f"steps {steps}")
    if [each.step for each in checkpoints] != [12, 9, 6, 3]:
        flaws.append(f"checkpoints {[each.step for each in checkpoints]}")
    return flaws


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.full)])
def test_of_the_same_command_given_twice_at_once_one_trains_and_the_other_ends_with_84(
    count: int, tmp_path: Path, start: Start, trial: Trial
) -> None:
    for number in range(count):
        output = f"out-{number}"
        commands = [start(output=output, code=SLOW) for _ in range(2)]
        ended = [False, False]

        def one_ended(commands: list[Command] = commands, ended: list[bool] = ended) -> bool:
            ended[:] = [each.ended() is not None for each in commands]
            return any(ended)

        commands[0].wait_until(one_ended)
        loser, winner = (commands[ended.index(True)], commands[ended.index(False)])
        (tmp_path / "on").touch()
        codes = (loser.finish(), winner.finish())
        (tmp_path / "on").unlink()
        named = f"pid {winner.process} on {socket.gethostname()}" in loser.text()
        flaws = mixed(tmp_path / output)
        is_right = codes == (Locked.exit_code, 0) and named and not flaws
        trial("P10", is_right, fault="the same command twice at once", codes=codes, named=named, flaws=flaws)


def test_a_second_command_is_refused_while_the_first_trains_and_takes_over_at_once_when_that_is_killed(
    tmp_path: Path, start: Start, trial: Trial
) -> None:
    first = start("--set", "train.workers=2", code=SLOW)
    (tmp_path / "on").touch()
    assert first.wait_until(lambda: "step 5/" in first.text()), first.text()
    (tmp_path / "on").unlink()
    second = start("--set", "train.workers=2")
    assert second.finish() == Locked.exit_code
    assert f"pid {first.process} on {socket.gethostname()}" in second.text()
    first.send(signal.SIGKILL)
    assert first.finish() == -signal.SIGKILL
    third = start("--set", "train.workers=2")
    code, flaws = third.finish(), mixed(tmp_path / "out")
    trial(
        "P10", code == 0 and not flaws, fault="the owner was killed", code=code, flaws=flaws, said=third.text()[-300:]
    )
    assert "continuing from checkpoint-" in third.text()


def test_without_an_output_the_second_command_gets_the_next_number(tmp_path: Path, start: Start, trial: Trial) -> None:
    first = start("--set", "name=mine", output=None, code=SLOW)
    assert first.wait_until(lambda: "training ..." in first.text()), first.text()
    second = start("--set", "name=mine", output=None)
    code = second.finish()
    (tmp_path / "on").touch()
    codes, runs = (first.finish(), code), sorted(path.name for path in (tmp_path / "runs").iterdir())
    flaws = [flaw for name in runs for flaw in mixed(tmp_path / "runs" / name)]
    is_right = codes == (0, 0) and runs == ["mine-001", "mine-002"] and not flaws
    trial("P10", is_right, fault="twice without --output", codes=codes, runs=runs, flaws=flaws)
