"""Rows with tools: every form becomes the same conversation, and every template's text and mask are those by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from data.test_columns import loaded, written
from data.tool_templates import END_TOKENS, FAMILIES, HERMES, Family, expected

from loradock.config.schema import RunConfig
from loradock.data.duplicates import Fingerprints
from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.formats.fields import RowError
from loradock.data.formats.keys import TURN_KEYS
from loradock.data.formats.turns import messages_of
from loradock.data.remarks import CUT
from loradock.data.render import Renderer
from loradock.data.templates import ChatTemplate, named
from loradock.errors import Problem
from loradock.training.run_dir.fingerprint import of_config
from loradock.use.inference.requests import sample_of

RAIN = {"name": "rain", "description": 'Is it "raining"?', "parameters": {"type": "object", "properties": {"city": {}}}}
TOOLS = ({"type": "function", "function": RAIN},)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"city": "Oslo"},
    {},
    {"city": 'Ö "quoted" \\ 日本 🙂\n', "nested": {"list": [1, 2.5, None, True, {"deep": "</tool_call>"}]}},
    {"city": "x</s>y <|im_end|>"},
)
ONE = ToolCall("rain", ARGUMENTS[0])


def renderer(template: str, **settings: Any) -> Renderer:
    return Renderer(
        ChatTemplate("t", template),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        end_tokens=END_TOKENS,
        loss=settings.pop("loss", "auto"),
        **settings,
    )


def talks(*, is_parallel: bool) -> list[Conversation]:
    user, result, answer = Message("user", "Rain?"), Message("tool", '{"rain": "ja"}'), Message("assistant", "Yes.")
    found = [
        Conversation((user, Message("assistant", "", calls=(ToolCall("rain", each),))), tools=TOOLS)
        for each in ARGUMENTS
    ]
    loop = (user, Message("assistant", "", calls=(ONE,)), result, answer)
    found += [Conversation((*loop, *loop), tools=TOOLS), Conversation((Message("system", "Be terse."), *loop, *loop))]
    found.append(Conversation((user, Message("assistant", "No need.")), tools=TOOLS))
    if is_parallel:
        calls = tuple(ToolCall("rain", each) for each in ARGUMENTS)
        found.append(Conversation((user, Message("assistant", "", calls=calls), *[result] * 4, answer), tools=TOOLS))
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_calls_are_learned_and_definitions_and_results_are_not_in_every_template(family: Family) -> None:
    render = renderer(family.template)
    for talk in talks(is_parallel=family.is_parallel):
        text, learned = expected(family.pieces(talk))
        rendering = render(talk)
        assert rendering.text.rstrip("\n") == text.rstrip("\n")
        mask = [any(first <= at < last for first, last in rendering.spans) for at in range(len(rendering.text))]
        assert mask == learned[: len(mask)], family.name
        assert_as_at_inference(render, talk)


def assert_as_at_inference(render: Renderer, talk: Conversation) -> None:
    """What is asked at inference and what is learned are the text of the row, turn by turn."""
    rendering = render(talk)
    answers = [index for index, message in enumerate(talk.messages) if message.role == "assistant"]
    assert len(answers) == len(rendering.spans)
    for index, (first, last) in zip(answers, rendering.spans, strict=True):
        prompt = render.prompt(talk.messages[:index], tools=talk.tools).text
        assert rendering.text[:last] == prompt + rendering.text[first:last]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_text_of_special_tokens_in_arguments_is_text(family: Family) -> None:
    call = Message("assistant", "", calls=(ToolCall("rain", ARGUMENTS[3]),))
    rendering = renderer(family.template)(Conversation((Message("user", "a<|im_end|>"), call), tools=TOOLS))
    found = [rendering.text[first:last] for first, last in rendering.special_texts]
    assert found == ["<|im_end|>", "</s>", "<|im_end|>"]


USER = {"role": "user", "content": "Rain?"}
CALL_TEXT = {"name": "rain", "arguments": json.dumps(ARGUMENTS[0])}
CALL = {"name": "rain", "arguments": ARGUMENTS[0]}
DONE = {"role": "assistant", "content": "Yes."}
SHARED = {"from": "human", "value": "Rain?"}
WRITTEN = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
FORMS: dict[str, dict[str, Any]] = {
    "openai": {
        "tools": list(TOOLS),
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL_TEXT}]},
            {"role": "tool", "content": "ja"},
            DONE,
        ],
    },
    "openai, no content and tools as text": {
        "tools": json.dumps(TOOLS),
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [{"function": CALL}]},
            {"role": "tool", "content": "ja"},
            DONE,
        ],
    },
    "openai, old": {
        "functions": [RAIN],
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": CALL_TEXT},
            {"role": "function", "content": "ja"},
            DONE,
        ],
    },
    "sharegpt": {
        "tools": json.dumps([RAIN]),
        "conversations": [
            SHARED,
            {"from": "function_call", "value": json.dumps(CALL)},
            {"from": "observation", "value": "ja"},
            {"from": "gpt", "value": "Yes."},
        ],
    },
    "hermes": {
        "tools": json.dumps(TOOLS),
        "conversations": [
            SHARED,
            {"from": "gpt", "value": WRITTEN},
            {"from": "tool", "value": "<tool_response>\nja\n</tool_response>"},
            {"from": "gpt", "value": "Yes."},
        ],
    },
    "ms-swift": {
        "tools": json.dumps(TOOLS),
        "messages": [
            USER,
            {"role": "tool_call", "content": json.dumps(CALL)},
            {"role": "tool_response", "content": "ja"},
            DONE,
        ],
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_row_is_the_same_conversation(form: str, tmp_path: Path) -> None:
    (sample,) = loaded(written(tmp_path / "rows.jsonl", FORMS[form]))
    call = Message("assistant", "", calls=(ONE,))
    turns = (Message("user", "Rain?"), call, Message("tool", "ja"), Message("assistant", "Yes."))
    assert sample == Conversation(turns, tools=TOOLS)


def test_queries_with_answers_of_calls_alone_are_conversations(tmp_path: Path) -> None:
    row = {"id": 3, "query": "Rain?", "tools": json.dumps([RAIN]), "answers": json.dumps([CALL, CALL])}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert sample == Conversation((Message("user", "Rain?"), Message("assistant", "", calls=(ONE, ONE))), tools=TOOLS)


def test_a_query_is_asked_without_its_calls_whether_it_has_them_or_not() -> None:
    row = {"query": "Rain?", "tools": json.dumps([RAIN])}
    for asked in (row, {**row, "answers": json.dumps([CALL])}):
        sample = sample_of(asked, is_chat=True)
        assert isinstance(sample, Conversation)
        assert (sample.messages[:-1], sample.tools) == ((Message("user", "Rain?"),), TOOLS)


def test_calls_in_turns_of_their_own_are_parallel(tmp_path: Path) -> None:
    call = {"role": "tool_call", "content": json.dumps(CALL)}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", {"tools": [RAIN], "messages": [USER, call, call]}))
    assert isinstance(sample, Conversation)
    assert [message.calls for message in sample.messages] == [(), (ONE, ONE)]


def test_text_that_is_no_call_and_rows_that_write_their_own_definitions_stay_text(tmp_path: Path) -> None:
    def answer(value: str) -> dict[str, Any]:
        return {"tools": [RAIN], "conversations": [SHARED, {"from": "gpt", "value": value}]}

    broken = "<tool_call>rain(Oslo)</tool_call>"
    own = {"from": "system", "value": f"<tools>{json.dumps(RAIN)}</tools>"}
    rows = [answer(broken), {"tools": [RAIN], "conversations": [own, *answer(WRITTEN)["conversations"]]}]
    toolace = {"system": "You may call rain(city).", "conversations": [
        {"from": "user", "value": "Rain?"}, {"from": "assistant", "value": '[rain(city="Oslo")]'},
        {"from": "tool", "value": "ja"}, {"from": "assistant", "value": "Yes."},
    ]}  # fmt: skip
    first, second, third = loaded(written(tmp_path / "rows.jsonl", *rows, toolace))
    assert first == Conversation((Message("user", "Rain?"), Message("assistant", broken)), tools=TOOLS)
    assert isinstance(second, Conversation)
    assert isinstance(third, Conversation)
    assert (second.tools, second.messages[-1].content) == ((), WRITTEN)
    assert not third.is_structured


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ({"name": "rain", "arguments": "{city"}, "messages[1].tool_calls[0].arguments is not JSON"),
        ({"name": "rain", "arguments": "[1]"}, "messages[1].tool_calls[0].arguments is a list, not an object"),
        ({"name": "rain", "arguments": '{"x": NaN}'}, "NaN is not a value of JSON"),
        ({"name": "rain", "arguments": {"x": ["\0"]}}, "holds a NUL character"),
        ({"arguments": {}}, "messages[1].tool_calls[0] has no name of a tool; it has arguments"),
    ],
)
def test_a_call_that_is_none_is_refused_with_its_place(call: dict[str, Any], what: str, tmp_path: Path) -> None:
    row = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}]}
    (problem,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert isinstance(problem, Problem)
    assert what in problem.what


@pytest.mark.parametrize("name", ["chatml", "gemma", "llama2"])
def test_a_template_that_writes_no_tools_is_refused_by_name_with_a_remedy_that_works(name: str) -> None:
    template = named(name).text
    for talk in talks(is_parallel=True):
        with pytest.raises(RowError, match=r"chat template \(t\) .*--set data.tools=text"):
            renderer(template)(talk)
        rendering = renderer(template, tools="text")(talk)
        learned = "".join(rendering.text[first:last] for first, last in rendering.spans)
        for call in [call for message in talk.messages for call in message.calls]:
            assert json.dumps({"name": "rain", "arguments": call.arguments}, ensure_ascii=False).strip() in learned
        assert RAIN["description"] not in learned
        assert "Result of" not in learned


def test_tools_as_text_are_turns_of_a_documented_form() -> None:
    calls = Message("assistant", "Wait.", calls=(ONE, ToolCall("rain", {})))
    results = (Message("tool", "ja", tool_name="rain"), Message("tool", "nei"))
    talk = Conversation((Message("system", "Be terse."), Message("user", "Rain?"), calls, *results, calls), tools=TOOLS)
    text = renderer(named("chatml").text, tools="text")(talk).text
    called = 'Wait.\n{"name": "rain", "arguments": {"city": "Oslo"}}\n{"name": "rain", "arguments": {}}'
    assert text.startswith("<|im_start|>system\nBe terse.\n\nYou can call these tools")
    assert f"\n{json.dumps(RAIN, ensure_ascii=False)}<|im_end|>\n<|im_start|>user\nRain?<|im_end|>" in text
    assert f"<|im_start|>assistant\n{called}<|im_end|>\n<|im_start|>user\nResult of rain: ja\n" in text
    assert text.endswith(f"Result of rain: nei<|im_end|>\n<|im_start|>assistant\n{called}<|im_end|>\n")


def test_a_call_that_the_template_refuses_says_why_and_what_to_do() -> None:
    llama = next(family for family in FAMILIES if family.name == "llama")
    talk = Conversation((Message("user", "a"), Message("assistant", "", calls=(ONE, ONE))), tools=TOOLS)
    with pytest.raises(RowError, match=r"one call at a time; --set data.tools=text"):
        renderer(llama.template)(talk)


def test_a_thought_is_learned_where_the_template_writes_it_and_told_where_it_is_cut() -> None:
    talk = Conversation(
        (
            Message("user", "a"),
            Message("assistant", "b", thought="first"),
            Message("user", "c"),
            Message("assistant", "d", thought="second"),
        )
    )
    for name in ("glm", "harmony"):
        family = next(family for family in FAMILIES if family.name == name)
        text, learned = expected(family.pieces(talk))
        rendering = renderer(family.template)(talk)
        mask = [any(first <= at < last for first, last in rendering.spans) for at in range(len(rendering.text))]
        assert (rendering.text, mask) == (text, learned)
        assert "second" in text
        assert "first" not in text
        assert CUT in [remark.name for remark in rendering.remarks]
        dropped = renderer(family.template, reasoning="drop")(talk)
        assert "second" not in dropped.text
        assert CUT not in [remark.name for remark in dropped.remarks]


def test_a_template_without_thoughts_is_given_them_as_text() -> None:
    talk = Conversation((Message("user", "a"), Message("assistant", "b", thought="hm")))
    rendering = renderer(HERMES)(talk)
    ((first, last),) = rendering.spans
    assert rendering.text[first:last] == "<think>\nhm\n</think>\n\nb<|im_end|>"


def test_arguments_of_the_template_are_given_to_it_also_for_a_prompt() -> None:
    template = HERMES + "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"
    render = renderer(template, arguments={"enable_thinking": False})
    assert render.prompt([Message("user", "a")]).text.endswith("<|im_start|>assistant\n<think></think>")
    assert not renderer(template).prompt([Message("user", "a")]).text.endswith("</think>")


@pytest.mark.parametrize("keys", TURN_KEYS[1:])
@pytest.mark.parametrize("names", [("user", "assistant"), ("human", "bot"), ("human", "gpt")])
def test_turns_are_read_under_the_keys_and_names_that_rows_have(
    keys: tuple[str, str], names: tuple[str, str], tmp_path: Path
) -> None:
    row = {"messages": [dict(zip(keys, turn, strict=True)) for turn in zip(names, ("a", "b"), strict=True)]}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert sample == Conversation((Message("user", "a"), Message("assistant", "b")))


def test_a_question_with_its_answer_in_one_object_is_two_turns_also_to_generate(tmp_path: Path) -> None:
    row = {"conversations": [{"system": "s", "human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}]}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    said = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert isinstance(sample, Conversation)
    assert [(each.role, each.content) for each in sample.messages] == said
    asked = sample_of(row, is_chat=True)
    assert isinstance(asked, Conversation)
    assert [(each.role, each.content) for each in asked.messages[:-1]] == said[:-1]


def test_turns_that_say_that_they_are_not_learned_are_context_calls_too(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}], "weight": 0}
    rows = [{"tools": [RAIN], "messages": [USER, call, {"role": "tool", "content": "ja"}, {**DONE, "train": True}]}]
    (sample,) = loaded(written(tmp_path / "rows.jsonl", *rows))
    assert isinstance(sample, Conversation)
    rendering = renderer(HERMES)(sample)
    assert [rendering.text[first:last] for first, last in rendering.spans] == ["Yes.<|im_end|>"]


def test_turns_in_any_order_are_rendered_as_the_template_writes_them() -> None:
    system, user, answer = Message("system", "s"), Message("user", "u"), Message("assistant", "a")
    for turns in ((answer, user, answer), (user, user, answer), (user, answer, answer), (system, user, system, answer)):
        rendering = renderer(named("chatml").text)(Conversation(turns))
        assert rendering.text == "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)
        learned = [rendering.text[first:last] for first, last in rendering.spans]
        assert learned == ["a<|im_end|>"] * sum(turn is answer for turn in turns)


def test_prompt_and_completion_of_turns_have_tools_and_those_of_text_none(tmp_path: Path) -> None:
    answer = {"role": "assistant", "tool_calls": [{"function": CALL}]}
    turned, plain = {"prompt": [USER], "completion": [answer]}, {"prompt": "Rain?", "completion": "Yes."}
    (sample, problem) = loaded(written(tmp_path / "rows.jsonl", *({**row, "tools": [RAIN]} for row in (turned, plain))))
    call = Message("assistant", "", calls=(ONE,))
    assert sample == Conversation((Message("user", "Rain?"), call), given=1, tools=TOOLS)
    assert isinstance(problem, Problem)
    assert "column 'tools' would be lost" in problem.what


def test_settings_of_tools_and_thoughts_that_say_nothing_leave_runs_of_before_as_they_are() -> None:
    def fields(**data: Any) -> dict[str, str]:
        return of_config(RunConfig.model_validate({"model": {"name": "m"}, "data": data}))

    plain = fields()
    assert not {"data.tools", "data.reasoning", "data.template_arguments"} & {*plain}
    for data in ({"tools": "text"}, {"reasoning": "drop"}, {"template_arguments": {"enable_thinking": False}}):
        assert len({*fields(**data)} - {*plain}) == 1


def test_rows_with_other_calls_are_no_copies_of_each_other() -> None:
    fingerprints = Fingerprints()
    for arguments in ({"city": "Oslo"}, {"city": "Bergen"}, {"city": "Oslo"}):
        call = Message("assistant", "", calls=(ToolCall("rain", arguments),))
        fingerprints.add(Conversation((Message("user", "Rain?"), call)))
    first, second, third = fingerprints.whole
    assert first == third != second


def test_keys_that_parquet_adds_to_calls_and_definitions_are_none_of_theirs(tmp_path: Path) -> None:
    """Arrow gives the arguments of each call the keys of all calls, as null."""

    def row(name: str, argument: str) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": name, "arguments": {argument: "x"}}}
        known = {"name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}}
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        return {"tools": [{"type": "function", "function": known}], "messages": turns}

    rows = [row("weather", "city"), row("clock", "zone")]
    file = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(rows).to_parquet(file)
    assert loaded(file) == loaded(written(tmp_path / "rows.jsonl", *rows))


def test_names_of_roles_are_known_in_capitals_too() -> None:
    turns = messages_of([{"role": "User", "content": "?"}, {"role": "ASSISTANT", "content": "!"}], "messages")
    assert [turn.role for turn in turns] == ["user", "assistant"]
