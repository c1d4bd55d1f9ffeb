"""What is seen in N steps, a kill -9, a resume and M more is what N + M steps see; and a late resume costs no more.

`code` that each process runs first notes what the engine's step is really given, and each item that its loader makes.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from faults.forking import Command, Forking
from proven import unchecked
from tiny import write_rows

from loradock.training.checkpoint.manifest import open_checkpoint
from loradock.training.checkpoint.store import Checkpoints
from loradock.training.saving import Progress

pytestmark = pytest.mark.thin(2)

STEPS, SAVE_EVERY, LATE = 18, 4, 100_000
SLACK_SECONDS = 10.0
NOTED = """
import json, os
from faults.seams import SEAMS
from loradock.training import batches
def note(file, *values):
    with open(file, "a") as stream: stream.write(json.dumps(values) + "\\n")
def made(loop, ids, make):
    note("seen", loop.step + 1, ids)
    return make()
real_item = batches.StepItems.__getitem__
def item(self, index):
    note("items", index, os.getpid())
    return real_item(self, index)
SEAMS["ENGINE"].step(made)
batches.StepItems.__getitem__ = item
"""


def sources(folder: Path) -> str:
    """Three files of 20, 15 and 9 rows, seen once, two and a half times and half the time in an epoch."""
    files = [
        {"path": str(write_rows(folder / f"rows-{n}.jsonl", rows=n, seed=n)), "weight": weight}
        for n, weight in ((20, 1.0), (15, 2.5), (9, 0.5))
    ]
    return f"data.sources={json.dumps(files)}"


def command(forking: Forking, place: Path, model: Path, *settings: str, engine: str) -> Command:
    each = (f"engine={engine}", "lora.rank=4", "lora.dropout=0.1", "logging.every=1", "checkpoints.keep=9", *settings)
    sets = [word for setting in each for word in ("--set", setting)]
    inputs = ("--model", str(model), "--output", "out", unchecked("rows that are seen"))
    return forking.start(place, "train", *inputs, *sets, code=NOTED.replace("ENGINE", engine))


def noted(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_rows_seen_before_a_kill_and_after_the_resume_are_those_of_a_run_that_nobody_killed(
    engine: str, tmp_path: Path, llama: Path, forking: Forking
) -> None:
    """Packed, three weighted sources, two workers, over more than an epoch of them; killed in the middle of it."""
    settings = (
        sources(tmp_path),
        f"train.max_steps={STEPS}",
        "train.global_batch=5",
        "train.micro_batch=2",
        "train.packing=true",
        "train.workers=2",
        "data.max_length=64",
        f"checkpoints.every={SAVE_EVERY}",
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for place in (whole, cut):
        place.mkdir()
    undisturbed = command(forking, whole, llama, *settings, engine=engine)
    killed = command(forking, cut, llama, *settings, engine=engine)
    committed = f"step {SAVE_EVERY}  checkpoint saved"  # beside the steps that follow
    assert killed.wait_until(lambda: f"step 6/{STEPS}" in killed.text() and committed in killed.text()), killed.text()
    killed.send(signal.SIGKILL)
    assert killed.finish() == -signal.SIGKILL
    before = noted(cut / "seen")
    resumed = command(forking, cut, llama, *settings, engine=engine)
    assert (resumed.finish(), undisturbed.finish()) == (0, 0), resumed.text()
    wanted, seen = noted(whole / "seen"), noted(cut / "seen")
    first = seen[len(before)][0]
    assert first - 1 in range(SAVE_EVERY, STEPS, SAVE_EVERY), "it began after a checkpoint"
    counted = [each for each in before if each[0] < first] + seen[len(before) :]
    again = all(each == wanted[each[0] - 1] for each in before)
    workers = {process for _, process in noted(whole / "items")}
    assert len(workers) == 2
    assert len(wanted) == STEPS
    assert any(len(micro_batches) > 1 for _, micro_batches in wanted)
    weights = (cut / "out" / "adapter" / "adapter_model.safetensors").read_bytes()
    same = weights == (whole / "out" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert counted == wanted
    assert again, "what was made twice was made alike"
    assert same


def committed_late(place: Path, *, step: int, at: int) -> None:
    """Commit the files of the checkpoint of `step` once more as those of step `at`, by the product's own commit."""
    folder = place / "out" / "checkpoints"
    real = open_checkpoint(folder / f"checkpoint-{step}")
    progress: Mapping[str, Any] = {**vars(Progress.of(real)), "step": at}
    files = {path.name: path.read_bytes() for path in real.path.iterdir() if path.name != "manifest.json"}
    store = Checkpoints(folder, run_id=real.run_id, fingerprint=real.fingerprint, keep=1)
    store.commit(at, files=files, progress=progress)


def seconds_to_first_step(run: Command, place: Path) -> float:
    """From the start of a command to its first step; then it is asked to end.

    75, or 76 where the signal finds the step begun and not yet made: a checkpoint of nothing new isn't written.
    """
    assert run.wait_until((place / "seen").exists), run.text()
    took = time.monotonic() - run.began
    run.send(signal.SIGTERM)
    assert run.finish() in (75, 76), run.text()
    return took


@pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])
def test_a_resume_at_a_late_step_makes_no_earlier_one_again_and_takes_as_long_as_at_an_early_one(
    engine: str, tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    settings = (f'data.sources=["{rows}"]', f"train.max_steps={LATE + 500}", "train.global_batch=4", "train.workers=0")
    settings = (*settings, "train.micro_batch=4", "checkpoints.every=10")
    run = command(forking, tmp_path, llama, *settings, engine=engine)
    assert run.wait_until((tmp_path / "out" / "checkpoints" / "checkpoint-10").exists), run.text()
    run.send(signal.SIGTERM)
    assert run.finish() == 75
    shutil.copytree(tmp_path, late := tmp_path / "late")
    committed_late(late, step=10, at=LATE)
    took, first = {}, {}
    for place in (tmp_path, late):
        for name in ("seen", "items"):
            (place / name).unlink()
        again = command(forking, place, llama, *settings, engine=engine)
        seconds = seconds_to_first_step(again, place)
        found = re.search(r"continuing from checkpoint-(\d+)", again.text())
        assert found
        step = int(found[1])
        took[step], first[step] = round(seconds, 2), min(index for index, _ in noted(place / "items"))
        assert noted(place / "seen")[0][0] == step + 1
    assert max(took) == LATE
    assert all(first[step] == step for step in took), "no item below the first step was made"
    assert took[LATE] < min(took.values()) + SLACK_SECONDS, took
