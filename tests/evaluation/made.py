"""Rows of tasks in the LLM-Adapters layout, made up, and where real ones are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny import WORDS

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NEEDS_DATA = pytest.mark.skipif(not SHARED.is_dir(), reason="shared data absent: the tasks' rows")


def question(number: int, *, answers: int = 4, word: str = "answer") -> dict[str, Any]:
    """A row of a task with numbered answers, of random words and length."""
    draw = random.Random(number)
    asked = " ".join(draw.choices(WORDS, k=draw.randint(4, 30)))
    names = [f"{word}{place}" for place in range(1, answers + 1)]
    shown = " ".join(f"{name.capitalize()}: {draw.choice(WORDS)}" for name in names)
    right = draw.choice(names)
    text = f"Please choose the correct answer to the question: {number} {asked}?\n\n{shown}\n\n"
    return {
        "instruction": f"{text}Answer format: {'/'.join(names)}",
        "input": "",
        "output": f"the correct answer is {right}",
        "answer": right,
    }


def true_or_false(number: int) -> dict[str, Any]:
    """A row of boolq."""
    draw = random.Random(number)
    right = draw.choice(("true", "false"))
    asked = " ".join(draw.choices(WORDS, k=draw.randint(3, 20)))
    text = f"Please answer the following question with true or false, question: {number} {asked}?"
    return {
        "instruction": f"{text}\n\nAnswer format: true/false",
        "input": "",
        "output": f"the correct answer is {right}",
        "answer": right,
    }


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as the list of JSON that the layout is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return file
