"""Formats: what each makes of a good row, which one is detected, and what a mapping does."""

from __future__ import annotations

import json

import pytest

from loradock.data.formats import (
    FORMATS,
    Completion,
    Conversation,
    Format,
    RowError,
    Sample,
    Undetected,
    convert_row,
    detect,
    named,
)


def turns(row: dict[str, object], **mapping: str) -> list[tuple[str, str]]:
    """Role and content of each turn of a row that is a conversation."""
    sample = convert_row(detect(row, mapping=mapping), mapping, row)
    assert isinstance(sample, Conversation)
    return [(message.role, message.content) for message in sample.messages]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_the_example_of_every_format_is_detected_as_it_and_converts(format: Format) -> None:
    row = json.loads(format.example)
    assert detect(row) is format is named(format.name)
    assert isinstance(convert_row(format, {}, row), Sample)
    assert set(format.required) <= set(format.fields)


def test_alpaca_joins_instruction_and_input_and_takes_a_system_text() -> None:
    row: dict[str, object] = {"instruction": "Add.", "input": "2, 2", "output": "4", "answer": "ignored"}
    assert turns(row) == [("user", "Add.\n\n2, 2"), ("assistant", "4")]
    assert turns({**row, "input": ""}) == turns({**row, "input": None}) == [("user", "Add."), ("assistant", "4")]
    assert turns({**row, "instruction": ""}) == [("user", "2, 2"), ("assistant", "4")]
    assert turns({**row, "system": "Be terse."})[0] == ("system", "Be terse.")


def test_chat_turns_keep_their_order_their_text_and_their_roles() -> None:
    row: dict[str, object] = {
        "messages": [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "name": "Ada"},
            {"role": "assistant", "content": " c ", "tool_calls": None, "weight": 1},
            {"role": "tool", "content": ""},
            {"role": "assistant", "content": "d"},
        ]
    }
    expected = [("system", "Be kind."), ("user", "a b"), ("assistant", " c "), ("tool", ""), ("assistant", "d")]
    assert turns(row) == expected


def test_sharegpt_names_become_roles_and_its_system_column_the_first_turn() -> None:
    row: dict[str, object] = {
        "system": "s",
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b"},
            {"from": "tool", "value": "c"},
            {"from": "gpt", "value": "d"},
        ],
    }
    assert turns(row) == [("system", "s"), ("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d")]
    openai = {"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert turns({**openai}) == [("user", "a"), ("assistant", "b")]


def test_prompt_and_completion_are_raw_text_or_a_conversation() -> None:
    row: dict[str, object] = {"prompt": "", "completion": " four"}
    assert convert_row(detect(row), {}, row) == Completion("", " four")
    user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert turns({"prompt": [user], "completion": [assistant]}) == [("user", "a"), ("assistant", "b")]


def test_text_is_learned_whole_and_a_pair_is_a_conversation() -> None:
    assert convert_row(named("text"), {}, {"text": " a\n"}) == Completion("", " a\n")
    assert turns({"text": ["a", "b"]}) == [("user", "a"), ("assistant", "b")]


def test_detection_prefers_the_format_that_says_more() -> None:
    assert detect(dict.fromkeys(["instruction", "input", "output", "text"], "a")).name == "alpaca"
    assert detect(dict.fromkeys(["prompt", "prompt_id", "messages"], "a")).name == "messages"
    assert detect(dict.fromkeys(["conversations", "text"], "a")).name == "sharegpt"
    assert detect(dict.fromkeys(["text", "url"], "a")).name == "text"


def test_a_mapping_decides_which_formats_come_into_question() -> None:
    columns = dict.fromkeys(["instruction", "output", "body", "q", "a"], "a")
    assert detect(columns, mapping={"text": "body"}).name == "text"
    assert detect(columns, mapping={"prompt": "q", "completion": "a"}).name == "prompt-completion"
    assert turns({"q": "x", "a": "y", "output": "z"}, instruction="q", output="a") == [
        ("user", "x"),
        ("assistant", "y"),
    ]
    with pytest.raises(Undetected, match=r"with fields text = gone"):
        detect(columns, mapping={"text": "gone"})


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (["question", "response"], "fields.instruction=question --set data.sources.2.fields.output=response"),
        (["prompt", "Answer"], "nearest is prompt-completion: --set data.sources.2.fields.completion=Answer"),
        (["dialogue"], "nearest is text: --set data.sources.2.fields.text=dialogue"),
        (["Text", "url"], "nearest is text: --set data.sources.2.fields.text=Text"),
        (["ouput", "instruction"], "nearest is alpaca: --set data.sources.2.fields.output=ouput"),
    ],
)
def test_the_nearest_format_is_proposed_as_options_to_type(columns: list[str], hint: str) -> None:
    with pytest.raises(Undetected) as caught:
        detect(dict.fromkeys(columns, "a"), index=2)
    assert hint in str(caught.value.hint)


def test_an_error_under_a_mapping_names_the_columns_of_the_user() -> None:
    with pytest.raises(RowError, match=r"output is null, not text \(with fields output = reply\)"):
        convert_row(named("alpaca"), {"output": "reply"}, {"instruction": "a", "reply": None})
    with pytest.raises(
        RowError, match=r"no column 'reply' \(field 'output'\); the row has instruction, replay; did you mean"
    ):
        convert_row(named("alpaca"), {"output": "reply"}, {"instruction": "a", "replay": "b"})
