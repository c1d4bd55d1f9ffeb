"""The benchmark of `evaluate`: its arithmetic over made-up lines, and a real round of the arms that need no lm-eval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation.made import question, true_or_false, write
from tiny import make_llama

from bench.evaluate.tables import alike, apart, best_peer, table

ROOT = Path(__file__).parents[2]
SECONDS = {"ours": 1.0, "lm-eval-1": 4.0, "lm-eval-16": 2.0, "ours-beams": 5.0, "llm-adapters-1": 10.0}


def lines_of(*, off: float = 0.0) -> list[dict[str, Any]]:
    """Rounds of which the first takes ten times as long; lm-eval's values are a little off."""
    lines = []
    for number in range(4):
        for arm, seconds in SECONDS.items():
            chosen = [[-1.0 + off * arm.startswith("lm-eval"), -2.0], [-3.0, -0.5]]
            answers = chosen if arm.startswith(("lm", "ours")) and arm != "ours-beams" else ["true", arm]
            cpu = seconds * (1 if number else 10)
            lines.append(
                {"round": number, "arm": arm, "answers": answers, "cpu_seconds": cpu, "wall_seconds": cpu, "load": 1.0}
            )
    return lines


def test_ratios_are_of_paired_rounds_with_the_best_batch_size_of_the_peer() -> None:
    assert best_peer(lines_of(), "lm-eval") == "lm-eval-16"
    assert best_peer(lines_of(), "other") is None
    machine = {"stack": {"torch": "2", "transformers": "5"}, "device": "cpu", "lm_eval": "0", "commit": "c"}
    text = table({**machine, "date": "today", "model": "m"}, lines_of())
    assert "ours over lm-eval-16: 2.00" in text
    assert "ours-beams over llm-adapters-1: 2.00" in text
    assert "| ours | 6 | 2.00 | 2.00 |" in text


def test_what_differs_is_seen() -> None:
    assert apart(lines_of(off=2e-4)) == pytest.approx(2e-4)
    assert alike(lines_of()) == {"lm-eval-1": 1.0, "lm-eval-16": 1.0, "llm-adapters-1": 0.5}


@pytest.mark.full
def test_a_round_of_the_arms_on_a_tiny_model(tmp_path: Path) -> None:
    for name in ("boolq", "arc-easy", "openbookqa"):
        row = true_or_false if name == "boolq" else question
        write(tmp_path / "data" / f"{name}.json", [row(number) for number in range(2)])
    words = ["--model", str(make_llama(tmp_path / "base")), "--tasks", str(tmp_path / "data"), "--rounds", "1"]
    words += ["--rows", "4", "--beam-batch-sizes", "2", "--results", str(tmp_path / "results")]
    done = subprocess.run([sys.executable, "-m", "bench.evaluate", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ours-beams over llm-adapters-2" in done.stdout
    _, *lines = [json.loads(line) for line in (tmp_path / "results" / "rounds.jsonl").read_text().splitlines()]
    assert alike(lines) == {"llm-adapters-2": 1.0}
