"""Chat rows as OpenAI writes them: `messages`, each with a role and its content."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format, Row, RowError, value_of
from loradock.data.formats.turns import conversation, messages_of


def _convert(row: Row) -> Conversation:
    for column in ("tools", "functions"):
        if row.get(column):
            raise RowError(f"{column!r} would be lost: write the tools into the system turn, or remove the column")
    return conversation(messages_of(value_of(row, "messages"), "messages"), "messages")


FORMAT = Format(
    name="messages",
    fields=("messages",),
    required=("messages",),
    convert=_convert,
    example='{"messages": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}]}',
)
