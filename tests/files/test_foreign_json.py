"""JSON from outside: whatever is none is a ValueError."""

from __future__ import annotations

import pytest

from loradock.files.foreign_json import loads


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[" * 200 + "]" * 200, r'"\u0000"', r'"\\\u0000"', r'"\ud800"', r'{"\udfff": 1}', b"\xff"],
)
def test_what_is_no_json_or_holds_no_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_what_only_looks_so_is_read() -> None:
    assert loads(r'["\\u0000", "\ud83d\ude00", "\\ud800"]') == [r"\u0000", "\N{GRINNING FACE}", r"\ud800"]
