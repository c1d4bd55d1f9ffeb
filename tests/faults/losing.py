"""Runs that save at every step, lose processes right after a save or at any moment, and are continued each time.

An evaluation set that the training rows contradict, so that the run ends by an early stop after its best step, whose
checkpoint is exported: what a save changes in one process alone shows in a loss, in the stop or in the adapter.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from faults.pairs import STEPS, adapter, lines, read

EVALUATE_EVERY = 2
FIRST_SAVES = (1, EVALUATE_EVERY, 2 * EVALUATE_EVERY)
"""After a forward pass without a backward one, which sees the dtypes; after an evaluation; after one that may stop."""
ENOUGH_SECONDS = 300.0
ALL = (0, 1)
VICTIMS = ((0,), (1,), ALL)
KILLS = 10
LONG_STEPS, LONG_PATIENCE = 60, 18
KILLED = """
import os, signal
from loradock.training.saving import Saver
real = Saver.save
def save(self, progress, *rest, **more):
    real(self, progress, *rest, **more)
    if progress.step == {step}:
        self.settle()
        if int(os.environ["RANK"]) in {victims}:
            os.kill(os.getpid(), signal.SIGKILL)
Saver.save = save
"""
"""Right after the save of a step; what the others do next meets a process that is gone."""


class Attempt(Protocol):
    """The processes of one start of a run."""

    def text(self) -> str:
        """What they have written so far."""
        ...

    def lose(self, ranks: Collection[int]) -> None:
        """SIGKILL to these ranks."""
        ...

    def finish(self) -> list[int]:
        """Their exit codes, once they have ended."""
        ...


@dataclass(frozen=True)
class Left:
    """What a finished run leaves: the losses of its steps and evaluations, how it ended, and the adapter."""

    losses: list[float]
    evaluations: list[float]
    ended: str
    best_step: int
    adapter: bytes

    @property
    def last_step(self) -> int:
        return len(self.losses)


def write_contradicting_rows(file: Path) -> Path:
    """Rows whose answers are made of characters that the training rows never have."""
    draw = random.Random(1)
    answers = ["".join(draw.choices("ZXQJ7935", k=draw.randint(20, 30))) for _ in range(6)]
    rows = [{"instruction": "Write the words backwards.", "input": "river", "output": each} for each in answers]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def settings(validation: Path, *, saves: bool = True, is_long: bool = False) -> tuple[str, ...]:
    """Those of a run that is evaluated and stops early; without `saves` only its end is saved.

    A long one has time for ten kills: it waits for a better evaluation for many steps, if not to its last.
    """
    return (
        f"checkpoints.every={1 if saves else 10 * LONG_STEPS}",
        f"checkpoints.keep_best={json.dumps(saves)}",
        f"checkpoints.keep={LONG_STEPS}",
        f"data.validation={validation}",
        f"evaluation.every={EVALUATE_EVERY}",
        f"train.early_stopping={LONG_PATIENCE if is_long else 1}",
        f"train.max_steps={LONG_STEPS if is_long else STEPS}",
        "train.learning_rate=0.1",
        "train.schedule=constant",
        "train.warmup=0",
    )


def left(folder: Path) -> Left:
    outcome = read(folder, "run.json")["outcome"]
    losses, evaluations = ([line["loss"] for line in lines(folder, kind)] for kind in ("train", "eval"))
    return Left(losses, evaluations, outcome["ended"], outcome["best_step"], adapter(folder))


def checkpointed(folder: Path, step: int) -> bytes:
    """The adapter in the checkpoint of a step."""
    return (folder / "out" / "checkpoints" / f"checkpoint-{step}" / "adapter_model.safetensors").read_bytes()


def lost_after_saves(begin: Callable[[str], Attempt], steps: Iterable[int], *, last: int | None = None) -> None:
    """Start a run, kill it right after the save of each of these steps, and let it come to its end.

    After the save of `last`, the run's last step, all are killed: one that is left may export, and end well.
    """
    before = None
    for turn, step in enumerate(steps):
        victims = ALL if step == last else VICTIMS[turn % len(VICTIMS)]
        attempt = begin(KILLED.format(step=step, victims=victims))
        assert 0 not in attempt.finish(), attempt.text()
        check_continued(attempt, before)
        before = step
    final = begin("")
    assert set(final.finish()) == {0}, final.text()
    check_continued(final, before)


def lost_at_random(begin: Callable[[str], Attempt], *, last_step: int, code: str) -> int:
    """Start a run, kill it ten times at a moment of its own after a random step, and let it come to its end.

    Returns how many starts went on from a checkpoint.
    """
    draw = random.Random(last_step)
    continued = 0
    for step in sorted(draw.sample(range(2, last_step // 2), KILLS)):
        attempt = begin(code)
        reach(attempt, step)
        time.sleep(draw.uniform(0, 0.3))
        attempt.lose(draw.choice(VICTIMS))
        assert 0 not in attempt.finish(), attempt.text()
        continued += "continuing from checkpoint-" in attempt.text()
    last = begin("")
    assert set(last.finish()) == {0}, last.text()
    return continued + ("continuing from checkpoint-" in last.text())


def reach(attempt: Attempt, step: int) -> None:
    """Wait until the attempt has made a step that is not before this one."""
    until = time.monotonic() + ENOUGH_SECONDS
    while not any(int(each) >= step for each in re.findall(r"step (\d+)/", attempt.text())):
        assert time.monotonic() < until, attempt.text()
        time.sleep(0.02)


def check_continued(attempt: Attempt, step: int | None) -> None:
    if step is not None:
        assert f"continuing from checkpoint-{step}\n" in attempt.text(), attempt.text()
