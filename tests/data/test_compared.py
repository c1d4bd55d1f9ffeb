"""Answers with a verdict, a score or a rank become a chosen and a rejected one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from whole_runs import train

from loradock.config.sections.data import SourceConfig
from loradock.data.formats.base import Completion, PreferencePair
from loradock.data.sources import format_of, samples
from loradock.errors import ConfigError, DataError, Problem

pytestmark = pytest.mark.thin(2)

GOOD, BAD = "Four.", "Five."
TALK_GOOD, TALK_BAD = (
    [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": answer}] for answer in (GOOD, BAD)
)
ASKED = {"prompt": "Two and two?"}
GRADED = [{"response": "Six.", "score": 4}, {"response": GOOD, "score": 9.5}, {"response": BAD, "score": 1}]
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("better-response", {**ASKED, "response_0": GOOD, "response_1": BAD, "better_response_id": 0}),
    ("better-response", {**ASKED, "response_0": BAD, "response_1": GOOD, "better_response_id": 1, "safe": True}),
    ("preference-strength", {**ASKED, "response_1": GOOD, "response_2": BAD, "preference_strength": -2}),
    ("preference-strength", {**ASKED, "response_1": BAD, "response_2": GOOD, "preference_strength": 1.0}),
    ("arena", {"conversation_a": TALK_GOOD, "conversation_b": TALK_BAD, "winner": "model_a"}),
    ("arena", {"conversation_a": TALK_BAD, "conversation_b": TALK_GOOD, "winner": "model_b", "judge": "x"}),
    ("winner", {**ASKED, "response_a": BAD, "response_b": GOOD, "winner": "b"}),
    ("ranked-completions", {"instruction": "Two and two?", "completions": GRADED}),
    ("ranked-completions", {"instruction": "?", "completions": [*GRADED, {"response": "Seven.", "score": None}]}),
    ("scored-responses", {**ASKED, "responses": [BAD, GOOD, "Six."], "scores": [1, 9.5, 4]}),
    ("scored-responses", {**ASKED, "responses": [GOOD, BAD, "Six."], "scores": [2, 1, None]}),
    ("ranked-answers", {**ASKED, "answers": [{"answer": BAD, "rank": 7}, {"answer": GOOD, "rank": 1}]}),
]


def read(path: Path, *rows: dict[str, Any], **source: Any) -> list[Any]:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return [sample for _, sample in samples(SourceConfig(path=str(path), **source))]


@pytest.mark.parametrize(("name", "row"), FORMS)
def test_the_better_answer_is_the_chosen_one(name: str, row: dict[str, Any], tmp_path: Path) -> None:
    (pair,) = read(tmp_path / "rows.jsonl", row)
    assert format_of(SourceConfig(path=str(tmp_path / "rows.jsonl"))) == name
    assert isinstance(pair, PreferencePair)
    assert [answer.turns[-1].content for answer in (pair.chosen, pair.rejected)] == [GOOD, BAD]


@pytest.mark.parametrize(("kind", "nothing"), [("parquet", math.nan), ("jsonl", 10**400)], ids=["NaN", "huge"])
def test_an_answer_whose_score_is_no_number_is_left_out(kind: str, nothing: float, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    listed = {**ASKED, "responses": ["Six.", GOOD, BAD]}
    two = {**ASKED, "completions": [{"response": "Six.", "score": nothing}, *GRADED[1:]]}
    for row in ({**listed, "scores": [nothing, 9, 1]}, two):
        (pair,) = read(path, row)
        assert [answer.turns[-1].content for answer in (pair.chosen, pair.rejected)] == [GOOD, BAD]
    (alone,) = read(path, {**listed, "scores": [nothing, 9, None]})
    assert alone.what == "responses: one answer alone has a text and a score or rank: none is preferred to another"
    (odd,) = read(path, {**ASKED, "response_1": GOOD, "response_2": BAD, "preference_strength": nothing})
    assert odd.what.startswith("preference_strength is ")


def test_answers_by_other_names_are_mapped_and_plain_lists_are_no_ranked_ones(tmp_path: Path) -> None:
    fields = {"response_a": "left", "response_b": "right", "winner": "verdict"}
    row = {**ASKED, "left": BAD, "right": GOOD, "verdict": "model_b"}
    (pair,) = read(tmp_path / "rows.jsonl", row, fields=fields)
    assert pair == PreferencePair(Completion(ASKED["prompt"], GOOD), Completion(ASKED["prompt"], BAD))
    (plain,) = read(tmp_path / "rows.jsonl", {"instruction": "?", "output": GOOD, "answers": [GOOD]})
    assert not isinstance(plain, PreferencePair | Problem)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({**ASKED, "completion": GOOD}, "prompt-completion"),
        ({"instruction": "Two and two?", "output": GOOD}, "alpaca"),
        ({"messages": TALK_GOOD}, "messages"),
        ({"messages": TALK_GOOD[:-1]}, "scored-responses"),
        ({**ASKED, "completion": None}, "scored-responses"),
    ],
)
def test_rows_with_an_answer_of_their_own_learn_it_whatever_else_was_scored(
    row: dict[str, Any], name: str, tmp_path: Path
) -> None:
    (sample,) = read(tmp_path / "rows.jsonl", {**row, "responses": [GOOD, BAD], "scores": [9, 2]})
    assert format_of(SourceConfig(path=str(tmp_path / "rows.jsonl"))) == name
    assert isinstance(sample, PreferencePair) == (name == "scored-responses")
    assert sample.texts[-1] == (BAD if name == "scored-responses" else GOOD)


def test_who_asks_for_preferences_is_told_the_format_of_such_rows(tmp_path: Path, llama: Path) -> None:
    row = {**ASKED, "completion": GOOD, "responses": [GOOD, BAD], "scores": [9, 2]}
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * 2)
    settings = ("objective=preference", "train.max_steps=1", "train.global_batch=2")
    with pytest.raises(ConfigError, match="learns nothing of it") as refused:
        train(tmp_path / "refused", *settings, model=llama, data=file)
    told = str(refused.value.hint).partition(", or ")[0].removeprefix("--set ")
    assert told == "data.sources.0.format=scored-responses"
    assert train(tmp_path / "taken", *settings, told, model=llama, data=file).outcome.steps == 1


def test_ties_and_words_that_are_no_verdict_are_named_by_their_lines_and_left_out_as_the_hint_says(
    tmp_path: Path, llama: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    row = {**ASKED, "response_a": GOOD, "response_b": BAD}
    _, tie, odd, missing = read(file, *({**row, "winner": said} for said in ("model_a", "tie (bothbad)", "c", None)))
    assert tie.what == "winner says a tie: neither answer is preferred, and the row cannot be learned from"
    assert odd.what == "winner is 'c': it says which answer is better by model_a, model_b or tie"
    assert missing.what == "winner is null: it says which answer is better by model_a, model_b or tie"
    assert [each.line for each in (tie, odd, missing)] == [2, 3, 4]
    (same,) = read(tmp_path / "same.jsonl", {"instruction": "?", "completions": [GRADED[0], GRADED[0]]})
    assert same.what.startswith("completions: all 2 answers are a tie")
    settings = ("objective=preference", "train.max_steps=1", "train.global_batch=2")
    with pytest.raises(DataError) as caught:
        train(tmp_path / "stopped", *settings, model=llama, data=file)
    words = next(str(problem.hint) for problem in caught.value.problems if "tie" in problem.what).split("--set ")[1:]
    left = train(tmp_path / "left", *settings, *(word.strip() for word in words), model=llama, data=file)
    assert left.record["data"]["skipped_rows"] == 3
    with pytest.raises(ConfigError, match="holds preference data") as supervised:
        train(tmp_path / "supervised", *settings[1:], model=llama, data=file)
    assert str(supervised.value.hint).endswith(f"or leave the file out (data.sources.0: {file})")
