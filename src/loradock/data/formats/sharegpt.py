"""Chat rows as ShareGPT writes them: `conversations`, each turn with from and value, and perhaps a `system` column."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format, Message, Row, RowError, optional_text_of, value_of
from loradock.data.formats.turns import conversation, messages_of


def _convert(row: Row) -> Conversation:
    if row.get("tools"):
        raise RowError("'tools' would be lost: write the tools into the system turn, or remove the column")
    talk = conversation(messages_of(value_of(row, "conversations"), "conversations"), "conversations")
    system = optional_text_of(row, "system")
    if not system:
        return talk
    if talk.messages[0].role == "system":
        raise RowError("there is a 'system' column and a system turn: keep one of them")
    return Conversation((Message("system", system), *talk.messages))


FORMAT = Format(
    name="sharegpt",
    fields=("conversations", "system"),
    required=("conversations",),
    convert=_convert,
    example='{"conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Good day."}]}',
)
