"""Rows beside those that another tool prepared: found in any order, and where each of the others parts is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loradock.cli import cli
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data.comparison import their_row, their_rows
from loradock.errors import DataError, NotReproduced

CHATS = [("how many", "seven stones"), ("how many", "eight stones"), ("which one", "lamp"), ("which one", "river")]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    lines = [{"prompt": prompt, "completion": answer} for prompt, answer in CHATS]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture
def theirs(llama: Path, chats: Path) -> list[dict[str, Any]]:
    """As a tool has them: shuffled, padded, the prompt's labels ignored."""
    from loradock.commands.data_rows import prepared

    config = RunConfig.model_validate({"model": {"name": str(llama)}, "data": {"sources": [{"path": str(chats)}]}})
    rows = prepared(config, progress=lambda _: None).corpus.leading.train.prepared
    made: list[dict[str, Any]] = []
    for index in (2, 0, 3, 1):
        ids, is_learned = (each.tolist() for each in rows.row(index))
        labels = [token if learned else -100 for token, learned in zip(ids, is_learned, strict=True)]
        pads = [0, 0, 0]
        made.append(
            {"input_ids": ids + pads, "labels": [*labels, -100, -100, -100], "attention_mask": [1] * len(ids) + pads}
        )
    return made


def compared(llama: Path, chats: Path, rows: list[dict[str, Any]], *more: str) -> Result:
    file = chats.with_name("theirs.jsonl")
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    words = ["data", "compare", "--model", str(llama), "--data", str(chats), "--prepared", str(file)]
    return CliRunner().invoke(cli, [*words, *more])


def test_the_same_rows_are_found_in_any_order_and_padded(
    llama: Path, chats: Path, theirs: list[dict[str, Any]]
) -> None:
    ended = compared(llama, chats, theirs)
    assert ended.exit_code == 0, ended.output
    assert "4 rows have the same ids and labels, of 4 here and 4 there" in ended.stdout


def test_another_label_another_id_and_a_row_too_few_are_named(
    llama: Path, chats: Path, theirs: list[dict[str, Any]]
) -> None:
    """Theirs have the order 3, 1, 4, 2 of the rows."""
    relabelled, changed, equal = theirs[0], theirs[1], theirs[2]
    end = max(index for index, label in enumerate(relabelled["labels"]) if label != -100)
    relabelled["labels"][end] = -100
    token = changed["input_ids"][2]
    changed["input_ids"][2] = token + 1
    ended = compared(llama, chats, [relabelled, changed, equal], "--json")
    assert isinstance(ended.exception, NotReproduced)
    assert "3 of 4 rows here, and 2 of 3 in" in str(ended.exception)
    found = json.loads(ended.stdout)
    numbers = ("rows", "their_rows", "equal", "other_labels", "other_ids", "left_out")
    assert [found[name] for name in numbers] == [4, 3, 1, 1, 1, 0]
    label, other = found["differences"]
    assert (label["place"].endswith(":3"), label["token"]) == (True, end)
    assert (label["learned_here"], label["learned_there"]) == (True, False)
    assert other["place"].endswith(":1")
    assert (other["token"], other["ours"], other["theirs"]) == (2, token, token + 1)


def test_two_equal_rows_need_two(llama: Path, chats: Path, theirs: list[dict[str, Any]]) -> None:
    ended = compared(llama, chats, [*theirs, theirs[0]])
    assert isinstance(ended.exception, NotReproduced)
    assert "0 of 4 rows here, and 1 of 5 in" in str(ended.exception)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"text": "a"}, "no column input_ids"),
        ({"input_ids": [1, 2], "labels": [1]}, "1 labels beside 2 input_ids"),
        ({"input_ids": "12", "labels": [1]}, "input_ids is text, not a list of token ids"),
        ({"input_ids": [1.5], "labels": [1]}, "input_ids holds a number (1.5), not a token id"),
    ],
)
def test_what_is_no_tokenised_row_is_refused_by_its_place(row: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError) as caught:
        their_row(row, "theirs, row 7")
    assert str(caught.value).startswith("error: theirs, row 7: ")
    assert what in str(caught.value)


def test_a_directory_of_save_to_disk_is_read(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list([{"input_ids": [5, 6, 7], "labels": [5, -100, 7]}]).save_to_disk(tmp_path / "saved")
    (row,) = their_rows(SourceConfig(path=str(tmp_path / "saved")))
    assert row.ids.tolist() == [5, 6, 7]
    assert row.is_learned.tolist() == [False, False, True], "nothing predicts the first"
