"""Prompt and completion: as plain text, learned without a template, or as two lists of chat turns."""

from __future__ import annotations

from dataclasses import replace

from loradock.data.formats.base import Completion, Format, Sample
from loradock.data.formats.fields import Row, RowError, check_filled, is_list, text_of, type_of, value_of
from loradock.data.formats.tools import with_tools
from loradock.data.formats.turns import conversation, messages_of, refuse_answered


def _convert(row: Row) -> Sample:
    prompt, completion = value_of(row, "prompt"), value_of(row, "completion")
    if is_list(prompt) and is_list(completion):
        if not completion:
            raise RowError("completion is empty: there is nothing to train on")
        given = messages_of(prompt, "prompt")
        answers = messages_of(completion, "completion")
        refuse_answered(given, answers[0].role, "prompt")
        turns = given + answers
        talk = conversation(turns, "prompt + completion")
        if len(talk.messages) <= len(given):
            raise RowError("completion says of every assistant turn that it is not learned: leave the row out")
        return with_tools(replace(talk, given=len(given)), row)
    if is_list(prompt) or is_list(completion):
        raise RowError(
            f"prompt is {type_of(prompt)} and completion is {type_of(completion)}: both must be text, or both lists"
        )
    return Completion(text_of(row, "prompt"), check_filled(text_of(row, "completion"), "completion"))


FORMAT = Format(
    name="prompt-completion",
    fields=("prompt", "completion", "tools"),
    required=("prompt", "completion"),
    answer="completion",
    as_turns={"prompt": "instruction", "completion": "output"},
    turned="alpaca",
    convert=_convert,
    example='{"prompt": "Two and two is", "completion": " four."}',
)
