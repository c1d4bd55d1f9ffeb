"""No column is lost without a word: each is used, named as unused, or refused with the option that maps it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.catalog.objectives.base import MARGINS_UNREAD
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.columns import Contents
from loradock.data.formats import Completion, Conversation
from loradock.data.formats.fields import is_filled
from loradock.data.prepare import prepare
from loradock.data.sources import HeldOut, held_out, samples
from loradock.data.statistics import read_texts
from loradock.data.text_statistics import measure_texts
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError, Problem

DOLLY = {"instruction": "When was it founded?", "context": "It began in 1999.", "response": "1999", "category": "qa"}
ORCA = {"id": "t0", "system_prompt": "Be terse.", "question": "Two and two?", "response": "4"}
CAPITALISED = {"Instruction": "Add.", "Input": "2 and 2", "Output": "4"}
ALPACA = {"instruction": "Add.", "output": "4"}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def loaded(path: Path, *, unread_fields: Collection[str] = MARGINS_UNREAD, **settings: object) -> list[Any]:
    """Samples and problems of a source."""
    source = SourceConfig.model_validate({"path": str(path), **settings})
    return [found for _, found in samples(source, unread_fields=unread_fields)]


def turns(sample: Conversation) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in sample.messages]


def obeyed(hint: str | None) -> dict[str, Any]:
    """The settings of a source that a hint's `--set` options ask for."""
    settings: dict[str, Any] = {"fields": {}}
    for quoted, plain in re.findall(r"--set (?:'([^']+)'|(\S+?)(?=\s|$|,))", hint or ""):
        key, _, value = (quoted or plain).removeprefix("data.sources.0.").partition("=")
        if key.startswith("fields."):
            settings["fields"][key.removeprefix("fields.")] = value
        else:
            settings[key] = value.strip("[]").split(", ") if value.startswith("[") else value
    return settings


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (DOLLY, [("user", "When was it founded?\n\nIt began in 1999."), ("assistant", "1999")]),
        (ORCA, [("system", "Be terse."), ("user", "Two and two?"), ("assistant", "4")]),
        (CAPITALISED, [("user", "Add.\n\n2 and 2"), ("assistant", "4")]),
        (
            {"prompt": "Two and two?", "response": "4", "system_prompt": "Be terse."},
            [("system", "Be terse."), ("user", "Two and two?"), ("assistant", "4")],
        ),
    ],
    ids=["dolly", "orca", "capitalised", "prompt and system"],
)
def test_the_hint_for_foreign_columns_maps_every_column_that_the_model_should_see(
    row: dict[str, Any], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", row)
    (problem,) = loaded(path)
    assert isinstance(problem, Problem)
    (sample,) = loaded(path, **obeyed(problem.hint))
    assert turns(sample) == expected


@pytest.mark.parametrize(
    ("row", "fields", "column"),
    [
        ({**DOLLY}, {"output": "response"}, "context"),
        ({**ALPACA, "Input": "2 and 2"}, {}, "Input"),
        ({**ALPACA, "system_prompt": "Be terse."}, {}, "system_prompt"),
        ({**ALPACA, "System Prompt": "Be terse."}, {}, "System Prompt"),
        ({**ALPACA, "input": " ", "context": "2 and 2"}, {}, "context"),
        (
            {
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "system_prompt": "c",
            },
            {},
            "system_prompt",
        ),
    ],
)
def test_a_filled_column_that_belongs_to_what_the_model_sees_is_refused_until_it_is_mapped_or_left_out(
    row: dict[str, Any], fields: dict[str, str], column: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", row)
    (problem,) = loaded(path, fields=fields)
    assert isinstance(problem, Problem)
    assert problem.what == f"column {column!r} is filled and would be lost"
    assert f"={column}," in str(problem.hint).replace("',", ",")
    (left_out,) = loaded(path, fields=fields, ignore=[column])
    assert isinstance(left_out, Conversation)


def test_an_empty_column_of_that_kind_and_one_beside_a_filled_field_are_no_loss(tmp_path: Path) -> None:
    rows = [{**ALPACA, "context": empty} for empty in ("", None, [])]
    assert not is_filled(float("nan"))
    assert is_filled(0)
    rows += [{**ALPACA, "input": "2 and 2", "context": "elsewhere"}]
    assert all(isinstance(found, Conversation) for found in loaded(written(tmp_path / "rows.jsonl", *rows)))


def test_the_history_of_an_alpaca_row_becomes_turns_before_its_instruction(tmp_path: Path) -> None:
    history = [["Hello.", "Good day."], ["Who?", "Ada."]]
    path = written(
        tmp_path / "rows.jsonl",
        {**ALPACA, "history": history, "system": "Be terse."},
        {**ALPACA, "history": []},
        {**ALPACA, "history": None},
        {**ALPACA, "history": [["only one"]]},
        {**ALPACA, "history": [["a", " "]]},
        {**ALPACA, "history": "Hello."},
    )
    full, empty, null, *refused = loaded(path)
    earlier = [("user", "Hello."), ("assistant", "Good day."), ("user", "Who?"), ("assistant", "Ada.")]
    assert turns(full) == [("system", "Be terse."), *earlier, ("user", "Add."), ("assistant", "4")]
    assert turns(empty) == turns(null) == [("user", "Add."), ("assistant", "4")]
    assert [problem.what for problem in refused] == [
        "history[0] is not a pair: [what the user said, what was answered]",
        "history[0][1], the answer, is empty: there is nothing to train on",
        "history is text, not a list of [user, assistant] pairs",
    ]


@pytest.mark.parametrize("key", ["thinking", "reasoning", "reasoning_content", "tool_calls"])
def test_what_a_users_turn_says_beside_its_content_is_refused(key: str, tmp_path: Path) -> None:
    said = {"role": "user", "content": "2+2?", key: "two and two are four"}
    path = written(tmp_path / "rows.jsonl", {"messages": [said, {"role": "assistant", "content": "4"}]})
    (problem,) = loaded(path)
    assert f"messages[0] has {key!r}, which would be lost" in problem.what


def test_other_columns_are_named_with_their_share_and_a_sample_also_from_the_cache(
    tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    rows: list[dict[str, Any]] = [{**ALPACA, "id": f"r{n}", "source": "web" if n == 2 else None} for n in range(4)]
    path = written(tmp_path / "rows.jsonl", *rows)
    chat = [{"role": "user", "content": "a", "name": "Ada"}, {"role": "assistant", "content": "b"}]
    talk = written(tmp_path / "talk.jsonl", {"messages": chat})
    data = DataConfig(sources=(SourceConfig(path=str(path)), SourceConfig(path=str(talk))), template="chatml")
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    for _ in ("made", "found in the cache"):
        first, second = prepare(data, tokenizer=spec, cache_dir=tmp_path / "cache").sources
        assert first.as_dict()["unused_columns"] == [
            {"name": "id", "rows": 4, "share": 1.0, "sample": "'r0'"},
            {"name": "source", "rows": 1, "share": 0.25, "sample": "'web'"},
        ]
        assert first.as_dict()["format"] == "alpaca"
        unused = "id (100 % of rows, such as 'r0'), source (25 % of rows, such as 'web')"
        assert first.told() == [f"{path}: columns not used by format alpaca: {unused}"]
        assert [each.name for each in second.contents.unused] == ["messages[].name"]
    texts = measure_texts(data.sources).sources
    assert [[each.name for each in source.unused_columns] for source in texts] == [
        ["id", "source"],
        ["messages[].name"],
    ]


def test_a_source_whose_columns_are_all_used_or_left_out_has_nothing_to_tell(tmp_path: Path) -> None:
    contents = Contents()
    source = SourceConfig(path=str(written(tmp_path / "rows.jsonl", {**ALPACA, "id": 3})), ignore=("id",))
    assert len(list(samples(source, contents=contents))) == 1
    assert contents == Contents(format="alpaca", unused=[], starts=[0])


def test_a_validation_file_is_read_as_the_sources_are_as_far_as_it_has_their_columns(tmp_path: Path) -> None:
    source = SourceConfig(path="rows.jsonl", fields={"output": "response", "input": "context"}, ignore=("category",))

    def read_as(row: dict[str, Any], **settings: Any) -> SourceConfig:
        path = written(tmp_path / "held_out.jsonl", row)
        (file,) = held_out(DataConfig(sources=(source.model_copy(update=settings),), validation=str(path)))
        return file

    same = read_as(DOLLY)
    assert (same.format, same.fields, same.ignore) == ("auto", source.fields, source.ignore)
    assert len(list(samples(same))) == 1
    other = read_as(ALPACA, format="alpaca")
    assert (other.format, other.fields, other.ignore) == ("alpaca", {}, ())
    chat = read_as({"messages": [{"role": "user", "content": "a"}]}, format="alpaca")
    assert (chat.format, chat.fields, chat.ignore) == ("auto", {}, ())
    mixed = DataConfig(sources=(source, SourceConfig(path="b.jsonl")), validation=same.path)
    assert held_out(mixed) == (HeldOut(path=same.path, split="").with_text_unit(mixed.text),)
    several = mixed.model_copy(update={"validation": {"one": same.path, "two": "b.jsonl"}})
    assert [file.path for file in held_out(several)] == [same.path, "b.jsonl"]


def test_an_answer_that_was_disliked_is_called_preference_data(tmp_path: Path) -> None:
    good = {"prompt": "Two and two?", "completion": " four", "thumbs_up": True}
    found = loaded(written(tmp_path / "rows.jsonl", good, {**good, "completion": " five", "thumbs_up": False}))
    assert isinstance(found[0], Completion)
    assert found[1].what.startswith("preference data (thumbs_up is false)")
    assert "preference.loss=kto --set data.sources.0.fields.label=thumbs_up" in found[1].hint
    assert "jq -c 'select(" in found[1].hint
    (tmp_path / "rows.csv").write_text("prompt,completion,thumbs_up\na,b,True\na,c,False\n")
    assert [isinstance(each, Problem) for each in loaded(tmp_path / "rows.csv")] == [False, True]
    classes = [{"prompt": "a", "completion": "b", "label": number} for number in (0, 1)]
    assert not [each for each in loaded(written(tmp_path / "rows.jsonl", *classes)) if isinstance(each, Problem)]


def test_statistics_refuse_a_source_that_changed_since_it_was_prepared(
    tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    source = SourceConfig(path=str(written(tmp_path / "rows.jsonl", ALPACA, ALPACA)))
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    prepared = prepare(DataConfig(sources=(source,)), tokenizer=spec, cache_dir=tmp_path / "cache")
    read_texts([source], prepared)
    with Path(source.path).open("a") as file:
        file.write(json.dumps(ALPACA))
    with pytest.raises(DataError, match="changed while it was read"):
        read_texts([source], prepared)
