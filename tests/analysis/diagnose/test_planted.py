"""Planted bottlenecks on a CPU: each found and named, none invented, also beside a process that loads a core."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from analysis.diagnose.plants import HEALTHY, LATE, PLANTS, Plant
from proven import unchecked
from tiny import WORDS, make_llama, write_rows

from loradock.training.run_dir.record import metrics

if TYPE_CHECKING:
    from faults.forking import Forking

FULL_REPEATS = 10
SLOW = ("micro-batch", "padding")
"""Of which one trial takes a minute: with --full alone."""
BETWEEN_RUNS = 1.2
"""By how much two runs of the same differ here beyond the interval: their steps take 10 to 20 ms."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base, rows of like length, many of them, and rows one in eight of which is long."""
    place = tmp_path_factory.mktemp("planted")
    make_llama(place / "base")
    write_rows(place / "short.jsonl", rows=200, longest=3)
    write_rows(place / "many.jsonl", rows=800, longest=3)
    draw = random.Random(0)
    lines = []
    for index in range(160):
        words = " ".join(draw.choice(WORDS) for _ in range(90 if index % 8 == 0 else 2))
        lines.append(json.dumps({"instruction": "Repeat.", "input": words, "output": "no"}))
    (place / "unequal.jsonl").write_text("\n".join(lines) + "\n")
    return place


def diagnosed(forking: Forking, world: Path, plant: Plant, output: Path, *options: str) -> dict[str, Any]:
    """The document of `loradock diagnose` on the tiny base with the plant in place."""
    settings = ("train.global_batch=8", "train.max_steps=2000", "data.max_length=256", *plant.settings)
    command = forking.start(
        world, "diagnose", "--model", "base", "--data", f"{plant.rows}.jsonl", "--output", str(output),
        "--steps", str(plant.steps), "--warmup-steps", "1",
        *(part for setting in settings for part in ("--set", setting)), *options, code=LATE + plant.code,
    )  # fmt: skip
    assert command.finish(seconds=300) == 0, command.text()
    assert command.left_behind() == []
    return json.loads((output / "diagnosis.json").read_text())


def named(content: dict[str, Any]) -> str | None:
    """The first bottleneck; that of a trial by its name without the number."""
    found = content["bottlenecks"]
    if not found:
        return None
    name = found[0]["name"]
    return "micro-batch" if name.startswith("micro-batch") else name


def check(content: dict[str, Any], plant: Plant) -> None:
    text = json.dumps(content, indent=1)
    assert named(content) == plant.name, text
    if plant.remedy:
        assert any(each.startswith(plant.remedy) for each in content["patch"]["settings"]), text


@pytest.fixture
def busy_core() -> Iterator[None]:
    """A second process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


@pytest.mark.parametrize("plant", [each for each in PLANTS if each.name not in SLOW], ids=lambda plant: plant.name)
@pytest.mark.thin(8)
def test_a_planted_bottleneck_is_named(forking: Forking, world: Path, plant: Plant, tmp_path: Path) -> None:
    check(diagnosed(forking, world, plant, tmp_path / "out"), plant)


@pytest.mark.thin(6)
def test_nothing_is_found_in_a_healthy_run(forking: Forking, world: Path, tmp_path: Path) -> None:
    content = diagnosed(forking, world, HEALTHY, tmp_path / "out")
    assert named(content) is None, json.dumps(content, indent=1)
    assert content["summary"].startswith("no bottleneck found: passes take ")


@pytest.mark.full
@pytest.mark.parametrize("repeat", range(FULL_REPEATS))
@pytest.mark.parametrize("plant", [*PLANTS, HEALTHY], ids=lambda plant: plant.name)
def test_every_planted_bottleneck_is_named_each_time(
    forking: Forking, world: Path, plant: Plant, repeat: int, tmp_path: Path
) -> None:
    content = diagnosed(forking, world, plant, tmp_path / "out")
    if plant is HEALTHY:
        assert named(content) is None, json.dumps(content, indent=1)
    else:
        check(content, plant)


@pytest.mark.full
@pytest.mark.usefixtures("busy_core")
@pytest.mark.parametrize("plant", [*PLANTS, HEALTHY], ids=lambda plant: plant.name)
def test_a_busy_core_changes_the_conclusion_on_none(
    forking: Forking, world: Path, plant: Plant, tmp_path: Path
) -> None:
    content = diagnosed(forking, world, plant, tmp_path / "out")
    assert named(content) == (None if plant is HEALTHY else plant.name), json.dumps(content, indent=1)


BROKEN = """
import os, signal, torch
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.backends.peft.backend import PeftBackend
real = FastBackend.forward_backward
def full(self, *rest, **more):
    if self.job.config.lora.rank == 8:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")
    return real(self, *rest, **more)
FastBackend.forward_backward = full
def crash(self, *_, **__):
    os.kill(os.getpid(), signal.SIGSEGV)
PeftBackend.forward_backward = crash
"""


@pytest.mark.thin(4)
def test_a_trial_that_crashes_or_finds_no_memory_is_a_result_and_the_others_go_on(
    forking: Forking, world: Path, tmp_path: Path
) -> None:
    plant = Plant(name="broken", code=BROKEN)
    names = "lora-rank-x0.5,engine-peft,checkpointing-on"
    rows = {
        each["name"]: each for each in diagnosed(forking, world, plant, tmp_path / "out", "--trials", names)["rows"]
    }
    assert rows["lora-rank-x0.5"]["conclusion"].startswith("out of memory: ")
    assert rows["engine-peft"]["conclusion"] == "failed: ended by SIGSEGV: Fatal Python error: Segmentation fault"
    assert rows["checkpointing-on"]["rounds"] >= 1
    assert list(world.glob(".loradock-diagnose-*")) == []


def trained_seconds(forking: Forking, world: Path, output: Path, words: list[str], code: str) -> float:
    """Of a step of the real run, with what comes between steps: of 40 steps after the first ten; then it is stopped."""
    command = forking.start(world, *words, "--output", str(output), unchecked("steps are timed"), code=code)
    assert command.wait_until(lambda: any(line["step"] > 50 for line in metrics(output, "train")), seconds=300)
    command.send(signal.SIGTERM)
    assert command.finish(seconds=60) == 75, command.text()
    lines = [line for kind in ("train", "eval", "checkpoint") for line in metrics(output, kind)]
    counted = [line for line in lines if 10 < line["step"] <= 50]
    return sum(line["seconds"] + line.get("phases", {}).get("logging", 0.0) for line in counted) / 40


@pytest.mark.full
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_patch_applied_gives_the_speed_up_that_it_claims(
    forking: Forking, world: Path, plant: Plant, tmp_path: Path
) -> None:
    content = diagnosed(forking, world, replace(plant, steps=20), tmp_path / "out")  # the steps of a person's call
    if not content["patch"]:
        assert plant.remedy is None, json.dumps(content, indent=1)
        return
    patched = shlex.split(content["command"])[1:]
    applied = [part for setting in content["patch"]["settings"] for part in ("--set", setting)]
    assert patched[-len(applied) :] == applied
    plain = patched[: -len(applied)]
    seconds: dict[str, list[float]] = {"plain": [], "patched": []}
    for turn in range(3):  # what disturbs a run makes it slower, so the fastest counts
        for name, words in (("plain", plain), ("patched", patched)):
            output = tmp_path / f"{name}-{turn}"
            seconds[name].append(trained_seconds(forking, world, output, words, LATE + plant.code))
    patch = content["patch"]
    found = min(seconds["plain"]) / min(seconds["patched"])
    assert patch["low"] / BETWEEN_RUNS <= found <= patch["high"] * BETWEEN_RUNS, (seconds, patch)
