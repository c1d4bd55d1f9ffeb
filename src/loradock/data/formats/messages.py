"""Chat rows as OpenAI writes them: `messages`, each with a role and its content, and perhaps a `system` column."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format
from loradock.data.formats.fields import Row, value_of
from loradock.data.formats.tools import with_tools
from loradock.data.formats.turns import conversation, messages_of, with_system


def _convert(row: Row) -> Conversation:
    talk = conversation(messages_of(value_of(row, "messages"), "messages"), "messages")
    return with_tools(with_system(talk, row), row)


FORMAT = Format(
    name="messages",
    fields=("messages", "system", "tools", "functions"),
    required=("messages",),
    turns="messages",
    convert=_convert,
    example='{"messages": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}]}',
)
