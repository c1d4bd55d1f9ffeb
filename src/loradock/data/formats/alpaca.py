"""Alpaca rows: an instruction, perhaps an input, and the output to learn. Other columns are left alone."""

from __future__ import annotations

from loradock.data.formats.base import (
    Conversation,
    Format,
    Message,
    Row,
    RowError,
    check_filled,
    optional_text_of,
    text_of,
)


def conversation(row: Row) -> Conversation:
    """User and assistant; the user says the instruction, and below it the input where there is one."""
    instruction, extra = text_of(row, "instruction"), optional_text_of(row, "input")
    output = check_filled(text_of(row, "output"), "output")
    content = f"{instruction}\n\n{extra}" if instruction and extra else instruction or extra
    if not content:
        raise RowError("instruction and input are both empty")
    turns = (Message("user", content), Message("assistant", output))
    system = optional_text_of(row, "system")
    return Conversation((Message("system", system), *turns) if system else turns)


FORMAT = Format(
    name="alpaca",
    fields=("instruction", "input", "output", "system"),
    required=("instruction", "output"),
    convert=conversation,
    example='{"instruction": "Name a prime number.", "input": "", "output": "Seven."}',
)
