"""Amounts: one unit and as many digits as a person compares, the same from every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import loradock
from loradock.text.amounts import (
    counted,
    duration_text,
    free_text,
    needed_text,
    percent,
    percent_of,
    size_text,
    some_of,
)

SOURCE = Path(loradock.__file__).parent
MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 KiB"), (40 << 10, "40 KiB"), (MIB, "1.0 MiB"), (150 * MIB, "150.0 MiB"), (3 * GIB // 2, "1.50 GiB"),
     (2000 * GIB, "2,000.00 GiB"), (-MIB, "-1.0 MiB")],
)  # fmt: skip
def test_bytes_have_the_largest_unit_that_they_fill(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("size", [1, 1023, 10 * MIB + 1, GIB + 1, 5 * GIB - 1])
def test_what_is_needed_is_never_said_to_fit_into_what_is_free_and_less(size: int) -> None:
    assert needed_text(size) != free_text(size - 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (40e-6, "40 us"), (0.24, "240 ms"), (1, "1 s"), (59.9, "59.9 s"), (246, "4.1 min"), (3600, "60 min"),
     (7200, "2 h"), (86400 * 2.5, "2.5 d"), (86400 * 1234, "1,234 d"), (-90, "-90 s"), (119, "119 s")],
)  # fmt: skip
def test_seconds_have_the_largest_unit_that_they_fill(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_no_share_is_called_all_or_nothing_but_those() -> None:
    shares = (0, 0.001, 0.5, 0.83, 0.9996, 1, 1.5)
    assert [percent(share) for share in shares] == ["0 %", "0.1 %", "50 %", "83 %", "99.96 %", "100 %", "150 %"]
    assert [percent(share) for share in (1e-7, 1 - 1e-7)] == ["under 0.001 %", "over 99.999 %"]
    assert [percent_of(part, 8) for part in (0, 1, 8)] == ["0 %", "12.5 %", "100 %"]
    assert percent_of(0, 0) == "0 %"


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "check") for number in (0, 1, 2000)] == ["0 checks", "1 check", "2,000 checks"]


def test_no_other_module_has_a_function_that_prints_bytes_seconds_or_shares() -> None:
    figure = r"\{[^{}]*(?:2\*\*[23]0|1e[69]|60|3600|100 \*)[^{}]*\}"
    pattern = re.compile(rf'^ *return f"{figure} (?:[GM]i?B|h|min|s|%)"$', re.M)
    found = [file for file in SOURCE.rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))]
    assert found == [SOURCE / "text" / "amounts.py"]


def test_of_many_names_the_first_are_named_and_the_others_counted() -> None:
    assert some_of(["a", "b"], most=2) == "a, b"
    assert some_of(range(2000), most=1) == "0 and 1,999 more"
