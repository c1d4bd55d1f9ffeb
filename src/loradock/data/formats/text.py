"""Plain text, all of it learned; or GritLM's prompts and answers by turns in the same column."""

from __future__ import annotations

from loradock.data.formats.base import Completion, Conversation, Format, Message, Sample
from loradock.data.formats.fields import Row, RowError, check_filled, check_text, is_list, text_of, type_of, value_of


def _convert(row: Row) -> Sample:
    value = value_of(row, "text")
    if is_list(value):
        return _pairs(value)
    return Completion("", check_filled(text_of(row, "text"), "text"))


def _pairs(pair: list[object]) -> Conversation:
    if not pair or len(pair) % 2:
        raise RowError(f"text is a list of {len(pair)}; a list must hold pairs: prompt, answer")
    turns: list[Message] = []
    for number, part in enumerate(pair):
        if type(part) is not str:
            raise RowError(f"text[{number}] is {type_of(part)}; prompts and answers must be text")
        check_text(part, f"text[{number}]")
        is_answer = number % 2 == 1
        content = check_filled(part, f"text[{number}], the answer,") if is_answer else part
        turns.append(Message("assistant" if is_answer else "user", content))
    return Conversation(tuple(turns))


FORMAT = Format(
    name="text",
    fields=("text",),
    required=("text",),
    convert=_convert,
    example='{"text": "Whatever stands here is learned, from the first word to the last."}',
)
