"""Alpaca rows: an instruction, perhaps an input, and the output to learn; perhaps a system text and earlier turns."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format, Message
from loradock.data.formats.fields import (
    Misfit,
    Row,
    RowError,
    check_filled,
    is_filled,
    is_list,
    optional_text_of,
    text_of,
    type_of,
)
from loradock.data.formats.turns import with_system


def conversation(row: Row) -> Conversation:
    """User and assistant, after the history's turns; the user says the instruction, and below it the input, if any."""
    instruction, extra = text_of(row, "instruction"), optional_text_of(row, "input")
    output = check_filled(text_of(row, "output"), "output")
    content = f"{instruction}\n\n{extra}" if instruction and extra else instruction or extra
    if not content:
        raise RowError("instruction and input are both empty")
    turns = (*_history(row), Message("user", content), Message("assistant", output))
    return with_system(Conversation(turns), row)


def _history(row: Row) -> list[Message]:
    """The turns of `history`, a list of [what the user said, what was answered] pairs, or nothing."""
    history = row.get("history")
    if not is_filled(history):
        return []
    if not is_list(history):
        raise Misfit(f"history is {type_of(history)}, not a list of [user, assistant] pairs")
    turns: list[Message] = []
    for number, pair in enumerate(history):
        where = f"history[{number}]"
        if not is_list(pair) or len(pair) != 2:
            raise RowError(f"{where} is not a pair: [what the user said, what was answered]")
        asked, answered = (text_of({f"{where}[{n}]": part}, f"{where}[{n}]") for n, part in enumerate(pair))
        turns += [Message("user", asked), Message("assistant", check_filled(answered, f"{where}[1], the answer,"))]
    return turns


FORMAT = Format(
    name="alpaca",
    fields=("instruction", "input", "output", "system", "history"),
    required=("instruction", "output"),
    answer="output",
    convert=conversation,
    example='{"instruction": "Name a prime number.", "input": "", "output": "Seven."}',
)
