"""The demo's score: exact match on the held-out rows, and the rows themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

DIRECTORY = Path(__file__).parent


def load_heldout() -> list[dict[str, str]]:
    """The 105 held-out rows, in file order: `instruction`, `input`, `output`, all text. None was trained on."""
    text = (DIRECTORY / "heldout.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Percentage (0 to 100) of predictions equal to their reference.

    White space around the text is ignored; everything else counts, letter case, commas and order too, so a right
    answer that rambles on is wrong. Raises ValueError where the lengths differ or there is nothing to score.
    """
    if not references:
        raise ValueError("nothing to score: references is empty")
    hits = sum(p.strip() == r.strip() for p, r in zip(predictions, references, strict=True))
    return 100 * hits / len(references)
