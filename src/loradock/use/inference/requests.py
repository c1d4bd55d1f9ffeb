"""Rows to answer: those of training's formats without their last answer, and plain lines of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from loradock.config.sections.data import Reading, SourceConfig
from loradock.data.columns import Columns
from loradock.data.formats import FORMATS
from loradock.data.formats.base import Completion, Conversation, Format, Message, renamed
from loradock.data.formats.fields import RowError, RowsChange, is_list, is_object
from loradock.data.formats.guess import ALIASES, plainly
from loradock.data.formats.keys import turn_keys
from loradock.data.formats.turns import ROLES, spoken

ANSWERABLE = tuple(format for format in FORMATS if format.answer or format.turns)
SPOKEN = tuple(name for name, role in ROLES.items() if role == "assistant")
PLACEHOLDER = "-"
AS_NAMED = Reading()


def sample_of(row: Mapping[str, Any], *, is_chat: bool, readings: Sequence[Reading] = ()) -> Conversation | Completion:
    """A row with a placeholder where its last answer was or will be; RowError where it is of no known shape.

    `readings`: how training read its columns, tried before the names that formats have. RowError, too, for a column
    that the model should see and that no field takes. `text` alone is a user's turn for a model that was trained on
    conversations (`is_chat`), else raw text.
    """
    for reading in (*readings, AS_NAMED):
        fields = {field: column for field, column in reading.fields.items() if column in row}
        if reading is AS_NAMED or fields:
            columns = renamed(fields, {name: value for name, value in row.items() if name not in reading.ignore})
            if sample := _read(columns, reading, is_chat=is_chat):
                return sample
    known = f"{', '.join(format.required[0] for format in ANSWERABLE)} or text"
    what = f"there is nothing to answer: the row has {', '.join(map(str, row)) or 'nothing'}, not {known}"
    raise RowError(what, change=_named_question(row, "instruction" if is_chat else "prompt"))


def _named_question(row: Mapping[str, Any], field: str) -> RowsChange | None:
    """The change that calls the column which seems to ask by a field's name; None where none seems to, or several."""
    texts = [name for name, value in row.items() if isinstance(value, str) and value.strip()]
    known = [name for alias in ALIASES[field] for name in texts if plainly(name) == alias]
    column = next(iter(known if known or len(texts) > 1 else texts), None)
    if column is None:
        return None
    jq = f".{field} = .COLUMN | del(.COLUMN)"
    return RowsChange(column=column, jq=jq, method=f"rename_column(COLUMN, {field!r})")


def _read(row: Mapping[str, Any], reading: Reading, *, is_chat: bool) -> Conversation | Completion | None:
    """The row by the names of fields, in the first format that has those of the reading; None where none fits."""
    for format in ANSWERABLE:
        is_asked = reading.format in ("auto", format.name) and {*reading.fields} <= {*format.fields}
        if is_asked and format.detect(frozenset(row) | ({format.answer} if format.answer else set())):
            return _checked(format, _open(format, row))
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        return None
    if not is_chat:
        return Completion(text, PLACEHOLDER)
    return Conversation((Message("user", text), Message("assistant", PLACEHOLDER)))


def _open(format: Format, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a placeholder for its answer."""
    if format.answer:
        stand_in = format.stand_in
        return {**row, format.answer: _like(row.get("prompt")) if "prompt" in format.fields else stand_in}
    assert format.turns
    return {**row, format.turns: _open_ended(row[format.turns])}


def _checked(format: Format, row: Mapping[str, Any]) -> Conversation | Completion:
    """The sample, of which nothing is lost that the model should see: the rule of training's columns."""
    sample = format.convert(row)
    assert isinstance(sample, (Conversation, Completion))
    try:
        Columns(SourceConfig(path="-"), format, 0, is_trained=False).note(row, sample)
    except RowError as error:
        raise RowError(str(error)) from None  # its hint names an option of training
    return sample


def _like(prompt: Any) -> Any:
    """A placeholder of the same shape as a prompt: turns or text."""
    return [{"role": "assistant", "content": PLACEHOLDER}] if is_list(prompt) else PLACEHOLDER


def _open_ended(turns: Any) -> Any:
    """Turns up to the last that is not an answer, and a placeholder for one."""
    if not is_list(turns) or not all(is_object(turn) for turn in turns):
        return turns
    turns_kept = spoken(turns)
    while turns_kept and turns_kept[-1].get(turn_keys(turns_kept[-1])[0]) in SPOKEN:
        turns_kept.pop()
    return [*turns_kept, {"role": "assistant", "content": PLACEHOLDER}] if turns_kept else turns_kept


def key_of(row: Mapping[str, Any], number: int) -> str:
    """What a row is known by: its content and its number."""
    return hashlib.sha256(f"{number}\0{json.dumps(row, sort_keys=True, default=str)}".encode()).hexdigest()[:16]
