"""Prompt and completion: as plain text, learned without a template, or as two lists of chat turns."""

from __future__ import annotations

from loradock.formats.base import Completion, Format, Row, RowError, Sample, check_filled, text_of, type_of, value_of
from loradock.formats.turns import conversation, messages_of


def _convert(row: Row) -> Sample:
    prompt, completion = value_of(row, "prompt"), value_of(row, "completion")
    if type(prompt) is list and type(completion) is list:
        turns = messages_of(prompt, "prompt") + _learned(completion)
        return conversation(turns, "prompt + completion")
    if type(prompt) is list or type(completion) is list:
        raise RowError(
            f"prompt is {type_of(prompt)} and completion is {type_of(completion)}: both must be text, or both lists"
        )
    return Completion(text_of(row, "prompt"), check_filled(text_of(row, "completion"), "completion"))


def _learned(completion: list[object]) -> tuple:
    if not completion:
        raise RowError("completion is empty: there is nothing to learn")
    return messages_of(completion, "completion")


FORMAT = Format(
    name="prompt-completion",
    fields=("prompt", "completion"),
    required=("prompt", "completion"),
    convert=_convert,
    example='{"prompt": "Two and two is", "completion": " four."}',
)
