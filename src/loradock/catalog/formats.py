"""The table of data formats: what `format` of a source takes besides auto, and what of `data/formats/` reads such rows.

To add one: a module there, and its line here. The order is the order of detection: a row that fits several (Alpaca
files often carry a ready-made `text` too) is taken for the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

FORMATS: dict[str, str] = {
    "pairs": "pairs:PAIRS",
    "sentence-transformers": "pairs:SENTENCE_TRANSFORMERS",
    "tevatron": "pairs:TEVATRON",
    "swift": "pairs:SWIFT",
    "swift-preference": "preference:SWIFT",
    "preference": "preference:FORMAT",
    "better-response": "compared:BETTER_RESPONSE",
    "preference-strength": "compared:PREFERENCE_STRENGTH",
    "arena": "compared:ARENA",
    "winner": "compared:WINNER",
    "ranked-completions": "compared:RANKED_COMPLETIONS",
    "ranked-answers": "compared:RANKED_ANSWERS",
    "scored-responses": "compared:SCORED_RESPONSES",
    "judgement": "judgement:FORMAT",
    "kto-tag": "judgement:LLAMA_FACTORY",
    "xlam": "xlam:FORMAT",
    "messages": "messages:FORMAT",
    "sharegpt": "sharegpt:FORMAT",
    "alpaca": "alpaca:FORMAT",
    "prompt-completion": "prompt_completion:FORMAT",
    "text": "text:FORMAT",
}

SELDOM = frozenset({"xlam"})
"""Formats that messages list after the others of their kind, and propose last."""

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal["auto", *FORMATS]
