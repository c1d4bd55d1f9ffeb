"""The contrastive benchmark: its arithmetic over made-up lines, and a real run of a few steps of every arm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.contrastive.tables import best_peer, disagreement, floor_of, ratios, seconds_of

ROOT = Path(__file__).parents[2]
SECONDS = {
    "ours-cached": 3.0,
    "ours-direct": 2.0,
    "ours-auto": 2.0,
    "mnrl": 4.0,
    "cached-mnrl-8": 6.0,
    "cached-mnrl-32": 9.0,
    "sorted-cached-mnrl-8": 5.0,
    "products": 1.0,
}


def lines_of(rounds: int = 4) -> list[dict[str, Any]]:
    """Steps that take longer from round to round, in all arms alike; the warm-up takes ten times as long."""
    return [
        {"round": number, "arm": arm, "loss": 2.0, "norm": 1.0, "cpu_seconds": seconds * (number or 10), "load": 1.0}
        for number in range(rounds)
        for arm, seconds in SECONDS.items()
    ]


def test_ratios_pair_the_steps_of_a_round_and_take_the_best_mini_batch_of_the_peer() -> None:
    seconds = seconds_of(lines_of())
    assert seconds["ours-direct"] == [2.0, 4.0, 6.0]
    assert best_peer(seconds, "cached-mnrl") == "cached-mnrl-8"
    found = {(each["arm"], each["peer"]): each["ratio"] for each in ratios(seconds)}
    assert found == {
        ("ours-cached", "cached-mnrl-8"): pytest.approx(2.0),
        ("ours-direct", "mnrl"): pytest.approx(2.0),
        ("ours-auto", "cached-mnrl-8"): pytest.approx(3.0),
        ("ours-cached", "sorted-cached-mnrl-8"): pytest.approx(5 / 3),
    }


def test_a_cached_step_has_the_floor_of_three_passes() -> None:
    seconds = seconds_of(lines_of())
    assert floor_of("ours-direct", seconds) == 2.0
    assert floor_of("cached-mnrl-8", seconds) == 3.0


def test_an_arm_with_another_loss_at_one_step_is_seen() -> None:
    lines = lines_of()
    assert disagreement(lines) == {"loss": 0.0, "norm": 0.0}
    lines[len(SECONDS) + 1]["norm"] = 1.001
    assert disagreement(lines) == {"loss": 0.0, "norm": pytest.approx(1e-3, rel=1e-2)}


@pytest.mark.full
def test_every_arm_computes_the_same_and_the_table_is_written(tmp_path: Path) -> None:
    size = ["--rounds", "2", "--pairs", "4", "--layers", "2", "--mini-batches", "2"]
    command = [sys.executable, "-m", "bench.contrastive", *size, "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "mixed.jsonl").read_text("utf-8").splitlines()]
    assert kinds == ["run"] + ["step"] * 3 * 7
    assert "| ours-direct over mnrl |" in (tmp_path / "mixed.md").read_text("utf-8")
