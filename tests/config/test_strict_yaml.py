"""Strict YAML: what is read, where it stands, and how fast what is hostile ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from loradock.config.scalars import scalar
from loradock.config.strict_yaml import Mark, parse_document, parse_value, read_document
from loradock.errors import ConfigError

SCALARS = {
    "1e-4": 1e-4,
    "1e3": 1000.0,
    "2.5E+2": 250.0,
    ".5": 0.5,
    "5.": 5.0,
    "-3": -3,
    "+3": 3,
    "0": 0,
    "0x10": 16,
    "0o17": 15,
    "true": True,
    "False": False,
    "~": None,
    "null": None,
    "": None,
    "-.inf": float("-inf"),
}
TEXTS = ["yes", "no", "on", "off", "y", "N", "0123", "00", "007.5", "1_000", "12:30:45", "190:20:30", "2024-01-01"]
TEXTS += ["2024-01-01T10:00:00Z", "0b11", ".", "+", "e5", "1e", "1.2.3", "=", "tRue", "nan", "inf", "٣", "1" * 40]


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_a_plain_scalar_means_what_yaml_1_2_says(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@pytest.mark.parametrize("text", TEXTS)
def test_what_yaml_1_1_would_turn_into_something_else_stays_text(text: str) -> None:
    assert scalar(text) == text
    assert parse_document(f"a: {text}\n", file="f").values == {"a": text}


def test_quotes_keep_a_text_a_text() -> None:
    document = parse_document("a: '1'\nb: \"true\"\nc: |\n  5\nd: ''\n", file="f")
    assert document.values == {"a": "1", "b": "true", "c": "5\n", "d": ""}


def test_every_key_and_item_has_its_line_and_column() -> None:
    text = "# a comment\na:\n  b: 1\n  c:\n    - x\n    - d: 2\n      e: {f: 3}\n"
    marks = parse_document(text, file="f").marks
    assert marks == {
        ("a",): Mark(2, 1),
        ("a", "b"): Mark(3, 3),
        ("a", "c"): Mark(4, 3),
        ("a", "c", 0): Mark(5, 7),
        ("a", "c", 1): Mark(6, 7),
        ("a", "c", 1, "d"): Mark(6, 7),
        ("a", "c", 1, "e"): Mark(7, 7),
        ("a", "c", 1, "e", "f"): Mark(7, 11),
    }


def test_an_alias_stands_for_a_whole_value() -> None:
    document = parse_document("a: &x [1, 2]\nb: *x\n", file="f")
    assert document.values == {"a": [1, 2], "b": [1, 2]}
    assert not document.problems


def test_keys_stay_as_they_are_written() -> None:
    assert parse_document("no: 1\n010: 2\n", file="f").values == {"no": 1, "010": 2}


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xef\xbb\xbftrain:\r\n  epochs: 3\r\n")
    assert read_document(file).values == {"train": {"epochs": 3}}


def test_a_file_of_comments_only_takes_every_default() -> None:
    assert parse_document("# nothing yet\n", file="f").values == {}


def bomb(levels: int) -> str:
    """Ten aliases a level: 10^levels values when expanded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


HOSTILE = {
    "aliases that expand to a billion values": (bomb(9), "aliases expand to more than 10000 values"),
    "a mapping that holds itself": ("a: &a {b: *a}\n", "or without end"),
    "a hundred thousand brackets": ("a: " + "[" * 100_000, "nested deeper than 32 levels"),
    "a hundred thousand braces": ("a: " + "{b: " * 100_000, "nested deeper than 32 levels"),
    "dashes without end": ("- " * 100_000, "nested deeper than 32 levels"),
    "a hundred thousand keys": ("".join(f"k{n}: 1\n" for n in range(100_000)), "more than 10000 values"),
    "a quote that never closes": ("a: '" + "x\n" * 100_000, "is never closed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_fast_with_a_reason(name: str) -> None:
    text, words = HOSTILE[name]
    start = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse_document(text, file="f")
    assert words in str(caught.value)
    assert time.process_time() - start < 5


def test_a_number_of_any_length_ends_fast() -> None:
    start = time.process_time()
    assert isinstance(scalar("9" * 1_000_000), str)
    assert scalar("1e999") == float("inf")
    assert time.process_time() - start < 1


def test_a_value_of_an_argument_follows_the_same_rules() -> None:
    assert parse_value("[q_proj, 1e-4, no]", file="f") == ["q_proj", 1e-4, "no"]
    assert parse_value("{a: 1}", file="f") == {"a": 1}
    assert parse_value('"1"', file="f") == "1"
    assert parse_value("a: b # c", file="f") == "a: b # c"
    with pytest.raises(ConfigError, match="given twice"):
        parse_value("{a: 1, a: 2}", file="f")
