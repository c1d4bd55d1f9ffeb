"""Conversations with tools, calls and thoughts: given to a chat template as it takes them, and their turns located.

Templates differ in how they want a call (arguments as an object or as JSON text, no content or an empty one, an id or
none), and many write no calls at all. What a template does with a probe says which form it renders whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.formats.fields import RowError
from loradock.data.turn_places import MARK, TurnPlaces, Unlocated, mark_of
from loradock.data.turns import Turn, TurnEnds

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""Messages as a template takes them, definitions, and whether it is a prompt -> text; RowError where it is refused."""
AS_TEXT = "--set data.tools=text writes definitions, calls and results as text"
KEYS = ("reasoning_content", "thinking", "reasoning")
"""What templates call a thought."""
ARGUMENTS = {"qkey": 'qvalue "ä"', "qlist": [1, True, {"qdeep": None}]}
DEFINED = {
    "type": "function",
    "function": {
        "name": "qtool",
        "description": "qdescription",
        "parameters": {"type": "object", "properties": {"qkey": {"type": "string"}}},
    },
}


@dataclass(frozen=True, kw_only=True)
class CallForm:
    """How a template takes calls. `has_ids`: calls and results need an id, and get one where the row has none."""

    arguments: Literal["object", "text"]
    content: str | None
    has_ids: bool


FORMS = tuple(
    CallForm(arguments=arguments, content=content, has_ids=has_ids)
    for has_ids, arguments, content in product((False, True), ("object", "text"), ("", None))
)


class Structured:
    """Renders structured conversations with one template, and says where the turns of the assistant stand."""

    def __init__(self, render: Render, *, name: str, ends: TurnEnds) -> None:
        self._render_given, self._name, self._ends = render, name, ends

    def rendered(self, talk: Conversation, *, is_prompt: bool = False) -> str:
        """The text of a conversation. RowError for what this template leaves out, and for what it refuses."""
        form = FORMS[0]
        if any(message.calls for message in talk.messages):
            form = self._form
        if talk.tools and not self._writes_definitions:
            raise RowError(f"the chat template ({self._name}) writes no definitions of tools; {AS_TEXT}")
        has_calls = bool(talk.tools) or any(message.calls for message in talk.messages)
        if has_calls and any(message.role == "tool" for message in talk.messages) and not self._writes_results:
            raise RowError(f"the chat template ({self._name}) writes no results of tools; {AS_TEXT}")
        if any(len(message.calls) > 1 for message in talk.messages) and not self._writes_several:
            raise RowError(f"the chat template ({self._name}) writes one call of a turn alone; {AS_TEXT}")
        try:
            return self._rendered(talk, form, is_prompt)
        except RowError as error:
            if not has_calls:
                raise
            raise RowError(f"{error}; {AS_TEXT}") from error

    def dropped(self, talk: Conversation) -> list[int]:
        """The turns whose thought the template leaves out."""
        thinking = [index for index, message in enumerate(talk.messages) if message.thought]
        if not thinking:
            return []
        marked = tuple(
            replace(each, thought=mark_of(index)) if index in thinking else each
            for index, each in enumerate(talk.messages)
        )
        text = self.rendered(replace(talk, messages=marked))
        return [index for index in thinking if mark_of(index) not in text]

    def turns(self, talk: Conversation, text: str, *, learned: Sequence[int], dropped: Sequence[int]) -> list[Turn]:
        """Where the learned turns stand in the text of the conversation, from their generation prompts on."""
        cut = tuple(replace(each, thought="") if index in dropped else each for index, each in enumerate(talk.messages))
        places = TurnPlaces(self.rendered, talk, text, without_cut=replace(talk, messages=cut), ends=self._ends)
        try:
            return [places.turn(index) for index in learned]
        except Unlocated as error:
            raise RowError(
                f"template {self._name}: cannot locate the assistant's turns in the rendered conversation with tools "
                f"or thoughts; {AS_TEXT}, --set data.reasoning=drop leaves thoughts out"
            ) from error

    @cached_property
    def _form(self) -> CallForm:
        """The first form in which a probe's call is written whole; RowError where none is.

        Python's own spelling of nested values (LFM2) counts where no form gives another.
        """
        refusals: list[str] = []
        written = [self._written_call(form, refusals) for form in FORMS]
        forms = [form for form, as_what in zip(FORMS, written, strict=True) if as_what == "values"]
        forms += [form for form, as_what in zip(FORMS, written, strict=True) if as_what == "python"]
        if not forms:
            why = (
                f"refuses calls of tools: {refusals[-1]}" if len(refusals) == len(FORMS) else "writes no calls of tools"
            )
            raise RowError(f"the chat template ({self._name}) {why}; {AS_TEXT}")
        return forms[0]

    def _written_call(self, form: CallForm, refusals: list[str]) -> Literal["values", "python"] | None:
        """How the call of a probe stands in its text: as JSON, or each name and value of it; None where not whole."""
        call = ToolCall("qtool", ARGUMENTS)
        turns = (Message("user", "a"), Message("assistant", "", calls=(call,)), Message("tool", "b"))
        talk = Conversation((*turns, Message("assistant", "c")), tools=(DEFINED,))
        try:
            text = self._rendered(talk, form, False).partition(MARK)[0]
            bare = self._rendered(replace(talk, messages=(turns[0], Message("assistant", "d"))), form, False)
        except RowError as error:
            refusals.append(str(error))
            return None
        if text.count("qtool") <= bare.count("qtool"):
            return None
        if any(value == ARGUMENTS for value in _objects(text)):
            return "values"
        if '\\"q' in text or not all(name in text for name in ("qvalue", "qlist", "qdeep")):
            return None
        return "python" if "'qdeep'" in text else "values"

    @cached_property
    def _writes_several(self) -> bool:
        """Whether no call of a turn is left out where it has two; a refusal says so itself."""
        calls = (ToolCall("qtool", ARGUMENTS), ToolCall("qother", ARGUMENTS))
        try:
            talk = Conversation((Message("user", "a"), Message("assistant", "", calls=calls)))
            return "qother" in self._rendered(talk, self._form, False)
        except RowError:
            return True

    @cached_property
    def _writes_definitions(self) -> bool:
        talk = Conversation((Message("user", "a"), Message("assistant", "b")), tools=(DEFINED,))
        try:
            return "qdescription" in self._rendered(talk, FORMS[0], False)
        except RowError:
            return False

    @cached_property
    def _writes_results(self) -> bool:
        call = Message("assistant", "", calls=(ToolCall("qtool", ARGUMENTS),))
        turns = (Message("user", "a"), call, Message("tool", "qresult"), Message("assistant", "c"))
        try:
            return "qresult" in self._rendered(Conversation(turns), self._form, False)
        except RowError:
            return False

    @cached_property
    def _has_thoughts(self) -> bool:
        """Whether the template reads a thought from a key of its own; else it is written as text (`<think>`)."""
        turns = (Message("user", "a"), Message("assistant", "b", thought=MARK))
        written = [_as_given(message, FORMS[0], keys=KEYS) for message in turns]
        try:
            return MARK in self._render_given(written, (), False)
        except RowError:
            return False

    def _rendered(self, talk: Conversation, form: CallForm, is_prompt: bool) -> str:
        messages = with_names(talk.messages)
        messages = with_ids(messages) if form.has_ids else messages
        keys = KEYS if any(each.thought for each in messages) and self._has_thoughts else ()
        return self._render_given([_as_given(each, form, keys=keys) for each in messages], talk.tools, is_prompt)


def _as_given(message: Message, form: CallForm, *, keys: Sequence[str]) -> dict[str, Any]:
    """A message as a template takes it."""
    given: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        given |= {"name": message.tool_name} if message.tool_name else {}
        given |= {"tool_call_id": message.call_id} if message.call_id else {}
    if message.thought and keys:
        given |= dict.fromkeys(keys, message.thought)
    elif message.thought:
        given["content"] = f"<think>\n{message.thought}\n</think>\n\n{message.content}"
    if message.calls:
        given["content"] = given["content"] or form.content
        given["tool_calls"] = [_call_given(call, form) for call in message.calls]
    return given


def _call_given(call: ToolCall, form: CallForm) -> dict[str, Any]:
    arguments = call.arguments if form.arguments == "object" else json.dumps(call.arguments, ensure_ascii=False)
    given = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return {"id": call.call_id, **given} if call.call_id else given


def with_names(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, each result with the name of its tool: the call's of its id, else of the next that has none yet."""
    completed: list[Message] = []
    open_calls: list[ToolCall] = []
    for message in messages:
        open_calls = [*message.calls] or open_calls
        if message.role == "tool":
            of_result = [call for call in open_calls if message.call_id in ("", call.call_id)][:1]
            open_calls = [call for call in open_calls if call not in of_result]
            name = message.tool_name or next((call.name for call in of_result), "")
            completed.append(replace(message, tool_name=name))
        else:
            completed.append(message)
    return tuple(completed)


def with_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, every call and its result with an id: nine letters and digits, as Mistral's templates want them."""
    found: list[Message] = []
    open_ids: list[str] = []
    number = 0
    for message in messages:
        calls: list[ToolCall] = []
        for call in message.calls:
            calls.append(replace(call, call_id=call.call_id or f"call{number:05d}"))
            number += 1
        open_ids = [call.call_id for call in calls] or open_ids
        call_id = message.call_id
        if message.role == "tool":
            call_id = call_id or (open_ids[0] if open_ids else "")
            open_ids = [each for each in open_ids if each != call_id]
        found.append(replace(message, calls=tuple(calls), call_id=call_id))
    return tuple(found)


def _objects(text: str) -> list[object]:
    """The objects of JSON that stand in a text, nested ones too."""
    decoder = json.JSONDecoder()
    found: list[object] = []
    for start, character in enumerate(text):
        if character == "{":
            try:
                found.append(decoder.raw_decode(text, start)[0])
            except ValueError:
                continue
    return found
