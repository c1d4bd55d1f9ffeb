"""Odd rows, copies and leaks that `data stats` finds, with their places; and honest rows that it leaves alone."""

from __future__ import annotations

import json
import random

import pytest
from data.measured import Maker, by_name, model, pairs, words, write

from loradock.data.statistics import measure
from loradock.data.suspicion import MOJIBAKE, UNPRINTABLE


def test_odd_rows_are_counted_with_their_places(make: Maker) -> None:
    rows = [
        *pairs(40, longest=20),
        ("What is red?", "A rose."),
        ("What is red?", "A brick."),
        ("What is red?", "A rose."),
        ("Say it again.", "Say it again. "),
        ("Bell?", "It rang\u0007."),
        ("Ol\u00c3\u00a9?", "It\u00e2\u20ac\u2122s ol\u00c3\u00a9."),
        ("Short?", "a"),
        (words(random.Random(1), 4000), "Too long."),
    ]
    found = make.of(rows)
    place = f"{make.folder}/rows.jsonl"
    odd = by_name(found)
    assert odd["duplicate"] == (1, (f"{place}:43 = {place}:41",))
    assert odd["other-answer"] == (1, (f"{place}:42 = {place}:41",))
    assert odd["answer-is-prompt"] == (1, (f"{place}:44",))
    assert odd["unprintable"] == (1, (f"{place}:45",))
    assert odd["mojibake"] == (1, (f"{place}:46",))
    assert odd["short-answer"] == (1, (f"{place}:47",))
    assert odd["outlier-long"] == (1, (f"{place}:48",))
    assert odd["left-out"] == (0, ()), "its last window has the answer"
    assert "leaked-row" not in odd
    characters = sum(len(prompt) + len(completion) for prompt, completion in rows)
    what = next(each.what for each in found.suspicions if each.name == "unprintable")
    assert f"({(1 + 2 + 3 + 2) / characters:.2g} of all characters" in what


def test_counts_go_on_where_places_end(make: Maker) -> None:
    odd = by_name(make.of([("Same.", "Yes.")] * 30 + [("Same.", "No.")]))
    assert odd["duplicate"][0] == 29
    assert len(odd["duplicate"][1]) == 5
    assert odd["other-answer"][0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "ol\u00e9 na\u00efve \u00c9COLE",
        "\u201cCAF\u00c9\u201d \u2013 d\u00e9j\u00e0\u2026",
        "\u65e5\u672c\u8a9e",
        "a\tb\r\nc",
        "\U0001f642 \u20ac5 \u00b0C",
        "\u00c3O",
    ],
)
def test_honest_text_is_not_taken_for_damaged(text: str) -> None:
    assert not UNPRINTABLE.search(text)
    assert not MOJIBAKE.search(text)


@pytest.mark.parametrize("text", ["ol\u00e9", "\u201cyes\u201d", "it\u2019s", "a \u2013 b", "\u00dcber", "\U0001f642"])
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_utf8_read_as_western_text_is_found(text: str, wrong: str) -> None:
    damaged = text.encode().decode(wrong, errors="replace")
    assert MOJIBAKE.search(damaged) or UNPRINTABLE.search(damaged)


def test_copies_are_told_apart_by_role_and_boundary(make: Maker) -> None:
    file = make.folder / "chat.jsonl"
    chats = [
        [("user", "a"), ("assistant", "bc")],
        [("user", "ab"), ("assistant", "c")],
        [("system", "a"), ("user", "a"), ("assistant", "bc")],
        [("user", "a"), ("assistant", "bc")],
    ]
    turns = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    file.write_text("\n".join(json.dumps({"messages": each}) for each in turns))
    found = measure(make.corpus(file, template="chatml"), model=model(), max_length=64)
    assert by_name(found)["duplicate"] == (1, (f"{file}:4 = {file}:1",))
    assert by_name(found)["other-answer"] == (0, ())


def test_a_validation_file_that_repeats_training_rows_is_told(make: Maker) -> None:
    train = pairs(30)
    held = [(train[7][0], "Something else."), *pairs(5, seed=9), train[3], train[3]]
    files = write(make.folder / "train.jsonl", train), write(make.folder / "held.jsonl", held)
    found = measure(make.corpus(files[0], validation=str(files[1])), model=model(), max_length=512)
    odd = by_name(found)
    assert odd["leaked-row"] == (2, (f"{files[1]}:7 = {files[0]}:4", f"{files[1]}:8 = {files[0]}:4"))
    assert odd["leaked-prompt"] == (1, (f"{files[1]}:1 = {files[0]}:8",))
    assert (found.train_rows, found.validation_rows) == (30, 8)


def test_a_split_lets_copies_leak_and_leaves_their_rows_out_of_training_figures(make: Maker) -> None:
    found = make.of(pairs(20) * 2, validation=0.5)
    corpus = make.corpus(make.folder / "rows.jsonl", validation=0.5)
    assert corpus.validation
    train, held = (set((part.fitted.rows % 20).tolist()) for part in (corpus.train, corpus.validation))
    expected = [row for row in corpus.validation.fitted.rows.tolist() if row % 20 in train]
    assert by_name(found)["leaked-row"][0] == len(expected) > 0
    assert found.sources[0].held_out == found.validation_rows == 20
    assert found.tokens.tokens == corpus.train.fitted.tokens
    assert found.validation
    assert found.validation.tokens == corpus.validation.fitted.tokens
    assert held | train == set(range(20))


def test_sources_are_counted_one_by_one(make: Maker) -> None:
    one = write(make.folder / "one.jsonl", pairs(10))
    two = make.folder / "two.jsonl"
    two.write_text("\n".join(json.dumps({"text": words(random.Random(n), 9)}) for n in range(6)))
    corpus = make.corpus(one, two)
    found = measure(corpus, model=model(), max_length=512)
    assert [(each.path, each.format, each.rows) for each in found.sources] == [
        (str(one), "prompt-completion", 10),
        (str(two), "text", 6),
    ]
    assert sum(each.tokens for each in found.sources) == found.tokens.tokens
    text = found.sources[1]
    assert text.learned_tokens == text.tokens - 6
    assert by_name(found)["other-answer"] == (0, ())
