"""The page of what the five stories claim is what the models say today, and leaves no row of a story out."""

from __future__ import annotations

from pathlib import Path

from facts.claims import page

from loradock.analysis.diagnose.seeds import SEEDS

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"


def test_the_page_of_claims_is_current() -> None:
    command = "PYTHONPATH=src:tests .venv/bin/python -m facts.claims > docs/claims.md"
    assert PAGE.read_text(encoding="utf-8") == page(), f"run: {command}"


def test_every_row_of_the_stories_stands_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [
        row.trial.title for rows in SEEDS.values() for row in rows if f"{row.trial.title}: {row.said}" not in text
    ]
    assert not missing
