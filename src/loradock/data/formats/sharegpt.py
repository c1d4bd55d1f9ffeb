"""Chat rows as ShareGPT writes them: `conversations`, each turn with from and value, and perhaps a `system` column."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format
from loradock.data.formats.fields import Row, value_of
from loradock.data.formats.tools import with_tools
from loradock.data.formats.turns import conversation, messages_of, with_system


def _convert(row: Row) -> Conversation:
    turns = messages_of(value_of(row, "conversations"), "conversations")
    return with_tools(with_system(conversation(turns, "conversations"), row), row)


FORMAT = Format(
    name="sharegpt",
    fields=("conversations", "system", "tools"),
    required=("conversations",),
    turns="conversations",
    convert=_convert,
    example='{"conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Good day."}]}',
)
