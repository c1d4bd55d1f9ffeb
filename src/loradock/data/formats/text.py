"""Plain text, all of it learned; or GritLM's pair of a prompt and an answer in the same column."""

from __future__ import annotations

from loradock.data.formats.base import (
    Completion,
    Conversation,
    Format,
    Message,
    Row,
    RowError,
    Sample,
    check_filled,
    check_text,
    is_list,
    text_of,
    type_of,
    value_of,
)


def _convert(row: Row) -> Sample:
    value = value_of(row, "text")
    if is_list(value):
        return _pair(value)
    return Completion("", check_filled(text_of(row, "text"), "text"))


def _pair(pair: list[object]) -> Conversation:
    if len(pair) != 2:
        raise RowError(f"text is a list of {len(pair)}; a list must be a pair: prompt, answer")
    prompt, answer = pair
    if type(prompt) is not str or type(answer) is not str:
        raise RowError(f"text is a pair of {type_of(prompt)} and {type_of(answer)}; both must be text")
    for number, part in enumerate((prompt, answer)):
        check_text(part, f"text[{number}]")
    return Conversation((Message("user", prompt), Message("assistant", check_filled(answer, "text[1], the answer,"))))


FORMAT = Format(
    name="text",
    fields=("text",),
    required=("text",),
    convert=_convert,
    example='{"text": "Whatever stands here is learned, from the first word to the last."}',
)
