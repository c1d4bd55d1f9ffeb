"""Statistics without a tokenizer against counts made here, row by row."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from data.measured import pairs, write

from loradock.config.sections.data import SourceConfig
from loradock.data.text_statistics import measure_texts
from loradock.errors import DataError, InputMissing


def test_characters_and_words_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = pairs()
    found = measure_texts([SourceConfig(path=str(write(tmp_path / "rows.jsonl", rows)))])
    counted = {
        "characters": [len(prompt) + len(answer) for prompt, answer in rows],
        "answer_characters": [len(answer) for _, answer in rows],
        "words": [len(prompt.split()) + len(answer.split()) for prompt, answer in rows],
        "answer_words": [len(answer.split()) for _, answer in rows],
    }
    for name, amounts in counted.items():
        amount, ordered = getattr(found, name), sorted(amounts)
        assert (amount.total, amount.mean) == (sum(amounts), pytest.approx(sum(amounts) / 60))
        expected = {str(share): ordered[math.ceil(share / 100 * 60) - 1] for share in (50, 90, 95, 99)}
        assert amount.percentiles == {**expected, "max": ordered[-1]}
    longest = counted["characters"].index(max(counted["characters"]))
    assert found.longest_row == f"{tmp_path}/rows.jsonl:{longest + 1}"
    assert (found.rows, found.formats) == (60, {"prompt-completion": 60})


def test_sources_are_counted_apart(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{seed}.jsonl", pairs(10 + seed, seed=seed)) for seed in (1, 2)]
    found = measure_texts([SourceConfig(path=str(file)) for file in files])
    assert [(each.path, each.rows) for each in found.sources] == [(str(files[0]), 11), (str(files[1]), 12)]
    assert sum(each.characters for each in found.sources) == found.characters.total
    assert max(each.longest for each in found.sources) == found.characters.percentiles["max"]


def test_odd_rows_are_named_with_their_places(tmp_path: Path) -> None:
    rows = [*pairs(20), pairs(1)[0], ("Why?", "word " * 5000), ("same", "same")]
    found = measure_texts([SourceConfig(path=str(write(tmp_path / "rows.jsonl", rows)))])
    places = {each.name: each.places for each in found.suspicions if each.rows}
    file = tmp_path / "rows.jsonl"
    assert places["duplicate"] == (f"{file}:21 = {file}:1",)
    assert places["outlier-long"] == (f"{file}:22",)
    assert places["answer-is-prompt"] == (f"{file}:23",)


def test_bad_rows_and_missing_files_end_it_as_they_end_train(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n[]\n', encoding="utf-8")
    with pytest.raises(DataError) as refused:
        measure_texts([SourceConfig(path=str(file))])
    assert [problem.line for problem in refused.value.problems] == [2, 3]
    with pytest.raises(InputMissing):
        measure_texts([SourceConfig(path=str(tmp_path / "nowhere.jsonl"))])
