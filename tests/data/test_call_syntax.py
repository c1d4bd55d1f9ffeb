"""Calls are read back from what real templates write, and what is broken is no call."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl
from data.test_tools import ARGUMENTS, TOOLS, renderer
from data.tool_templates import FAMILIES

from loradock.data.call_readers import CallSyntax, JsonCalls, NamedCalls, PythonCalls, TaggedCalls, Unread
from loradock.data.call_syntax import end_of, syntax_of
from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.render import Renderer
from loradock.data.templates import named

SHIPPED = Path(trl.__file__).parent / "chat_templates"
"""Templates of published models that TRL, which the lock has, ships for its own use."""
READ = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl", "qwen3_5_think", "qwen3_8", "llama3_1", "llama3_2",
        "gptoss", "glm4moe", "nemotron_3_nano", "muse_glimmer", "lfm2_2_5", "lfm2_v2")  # fmt: skip
SINGLE = ("llama", "harmony", "llama3_1", "llama3_2", "gptoss")
OWN = {family.name: family.template for family in FAMILIES}
CALLS = tuple(ToolCall("rain", arguments) for arguments in ARGUMENTS[:3])


def rendering(name: str) -> Renderer:
    if name == "text":
        return renderer(named("chatml").text, tools="text", loss="completion")
    return renderer(OWN.get(name) or (SHIPPED / f"{name}.jinja").read_text(), loss="completion")


def syntax(render: Renderer) -> CallSyntax:
    found = syntax_of(render.learned_text)
    assert found
    return found


@pytest.mark.parametrize("name", [*READ, *OWN, "text"])
def test_what_a_template_writes_is_read_back_as_the_same_values(name: str) -> None:
    render = rendering(name)
    asked = Message("user", "Rain?")
    turns = [Message("assistant", "", calls=calls) for calls in [*zip(CALLS), *([] if name in SINGLE else [CALLS])]]
    for turn in turns:
        text = render.learned_text(Conversation((asked, turn), tools=TOOLS))
        assert syntax(render).read(text, TOOLS) == turn.calls
    said = render.learned_text(Conversation((asked, Message("assistant", "It is {dry}. {}")), tools=TOOLS))
    assert syntax(render).read(said, TOOLS) == ()


@pytest.mark.parametrize("name", ["lfm2", "gemma4_v5", "llama3"])
def test_a_way_to_write_calls_that_nothing_reads_is_known_as_such(name: str) -> None:
    assert syntax_of(rendering(name).learned_text) is None


HERMES, LLAMA, MISTRAL = JsonCalls("<tool_call>"), JsonCalls(""), JsonCalls("[TOOL_CALLS]")
HARMONY = NamedCalls("to=functions.")
QWEN = TaggedCalls("<function=", "<parameter=", ">\n", "</parameter>")
LFM = PythonCalls("<|tool_call_start|>", "<|tool_call_end|>")
TYPED = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "number"}}}}}]


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (HERMES, 'Wait.<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>'),
        (HERMES, '<think>a <tool_call> may help</think><tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}'),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
        (LLAMA, 'Let us see: {x}\n{"y": 1}\n  {"name": "f", "parameters": {"a": 1}}'),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]'),
        (HARMONY, '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'),
        (NamedCalls("[TOOL_CALLS]"), '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}'),
        (QWEN, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        (LFM, "<|tool_call_start|>[f(a=1)]<|tool_call_end|>It is."),
        (QWEN, "<function=f><parameter=a>1</parameter></function>"),
    ],
)
def test_calls_are_read_as_models_vary_them(syntax: CallSyntax, text: str) -> None:
    assert syntax.read(text, ()) == (ToolCall("f", {"a": 1}),)


def test_an_argument_without_quotes_is_of_the_type_that_its_definition_says() -> None:
    text = "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n1\n</parameter>\n</function>"
    assert QWEN.read(text, TYPED) == (ToolCall("f", {"a": "1", "b": 1}),)


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}'),
        (HERMES, "<tool_call>f(a=1)</tool_call>"),
        (HERMES, '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        (LLAMA, '{"name": "f", "parameters": {"a": 1'),
        (LLAMA, '{"name": "f", "parameters": [1]}'),
        (HARMONY, "to=functions.f: none"),
        (HARMONY, 'to=functions.f<|message|>{"a": '),
        (QWEN, "<function=f>\n<parameter=a>\n1\n"),
        (QWEN, "<function=>"),
        (LFM, "<|tool_call_start|>[f(a=1)"[:-1]),
        (LFM, "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
        (LFM, "<|tool_call_start|>[f(a=g())]<|tool_call_end|>"),
        (LFM, "<|tool_call_start|>f(a=1)<|tool_call_end|>"),
    ],
)
def test_what_begins_a_call_and_is_none_is_unread(syntax: CallSyntax, text: str) -> None:
    with pytest.raises(Unread):
        syntax.read(text, ())


@pytest.mark.parametrize(
    ("name", "end"),
    [("gptoss", "<|call|>"), ("qwen3", "<|im_end|>"), ("llama3_1", "<|eot_id|>"), ("text", ""), ("llama3", "")],
)
def test_what_ends_a_turn_of_calls_is_known(name: str, end: str) -> None:
    assert rendering(name).end_of_call == end


def test_what_stands_between_calls_too_does_not_end_a_turn_of_them() -> None:
    each = lambda talk: "".join("call</c>" for _ in talk.messages[-1].calls)  # noqa: E731
    assert end_of(each, lambda _: "</c>") == ""
    assert end_of(lambda talk: each(talk) + "<e>", lambda _: "<e>") == "<e>"
