"""Planted bottlenecks on a CPU: each found and named, none invented, also beside a process that loads a core."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from diagnosis.plants import LATE, PLANTS, Plant
from tiny import WORDS, make_llama, write_rows

if TYPE_CHECKING:
    from faults.forking import Forking

STEPS, WARMUP = 6, 2
QUICK_REPEATS, FULL_REPEATS = 3, 10


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
        "--steps", str(STEPS), "--warmup-steps", str(WARMUP),
        *(part for setting in settings for part in ("--set", setting)), *options, code=LATE + plant.code,
    )  # fmt: skip
    assert command.finish(seconds=300) == 0, command.text()
    assert command.left() == []
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


@pytest.mark.parametrize("repeat", range(QUICK_REPEATS))
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bottleneck_is_named(
    forking: Forking, world: Path, plant: Plant, repeat: int, tmp_path: Path
) -> None:
    check(diagnosed(forking, world, plant, tmp_path / "out"), plant)
