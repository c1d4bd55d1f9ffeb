"""Rows to answer: those of training's formats without their last answer, and plain lines of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from loradock.data.formats import alpaca, messages, prompt_completion, sharegpt
from loradock.data.formats.base import Completion, Conversation, Message, RowError, convert_row, is_list, is_object

FORMATS = (messages.FORMAT, sharegpt.FORMAT, alpaca.FORMAT, prompt_completion.FORMAT)
ANSWERS = {"alpaca": "output", "prompt-completion": "completion"}
TURNS = {"messages": "messages", "sharegpt": "conversations"}
SPOKEN = ("assistant", "gpt")
PLACEHOLDER = "-"


def sample_of(row: Mapping[str, Any], *, is_chat: bool) -> Conversation | Completion:
    """A row with a placeholder where its last answer was or will be; RowError where it is of no known shape.

    `text` alone is a user's turn for a model that was trained on conversations (`is_chat`), else raw text.
    """
    for format in FORMATS:
        name = ANSWERS.get(format.name)
        if format.detect(frozenset(row) | ({name} if name else set())):
            given = dict(row)
            if name:
                given[name] = _like(row.get("prompt")) if name == "completion" else PLACEHOLDER
            else:
                given[TURNS[format.name]] = _open_ended(row[TURNS[format.name]])
            found = convert_row(format, {}, given)
            assert isinstance(found, (Conversation, Completion))
            return found
    text = row.get("text")
    if not isinstance(text, str) or not text.strip():
        known = "messages, conversations, instruction, prompt or text"
        raise RowError(f"there is nothing to answer: the row has {', '.join(map(str, row)) or 'nothing'}, not {known}")
    if not is_chat:
        return Completion(text, PLACEHOLDER)
    return Conversation((Message("user", text), Message("assistant", PLACEHOLDER)))


def _like(prompt: Any) -> Any:
    """A placeholder of the same shape as a prompt: turns or text."""
    return [{"role": "assistant", "content": PLACEHOLDER}] if is_list(prompt) else PLACEHOLDER


def _open_ended(turns: Any) -> Any:
    """Turns up to the last that is not an answer, and a placeholder for one."""
    if not is_list(turns) or not all(is_object(turn) for turn in turns):
        return turns
    kept = list(turns)
    while kept and kept[-1].get("role", kept[-1].get("from")) in SPOKEN:
        kept.pop()
    return [*kept, {"role": "assistant", "content": PLACEHOLDER}] if kept else kept


def key_of(row: Mapping[str, Any], number: int) -> str:
    """What a row is known by: its content and its number."""
    return hashlib.sha256(f"{number}\0{json.dumps(row, sort_keys=True, default=str)}".encode()).hexdigest()[:16]
