"""Rows of function calls as xLAM writes them: a query, the tools and the calls to answer with, both as JSON text."""

from __future__ import annotations

from loradock.data.formats.base import Conversation, Format, Message
from loradock.data.formats.fields import Row, RowError, text_of, value_of
from loradock.data.formats.tools import calls_of, definitions_of


def _convert(row: Row) -> Conversation:
    calls = calls_of(value_of(row, "answers"), "answers")
    if not calls:
        raise RowError("answers holds no call: there is nothing to train on")
    turns = (Message("user", text_of(row, "query")), Message("assistant", "", calls=calls))
    return Conversation(turns, tools=definitions_of(value_of(row, "tools"), "tools"))


FORMAT = Format(
    name="xlam",
    fields=("query", "tools", "answers"),
    required=("query", "tools", "answers"),
    convert=_convert,
    answer="answers",
    stand_in=[{"name": "-"}],
    example='{"query": "Rain in Oslo?", "tools": "[{\\"name\\": \\"rain\\", \\"parameters\\": {}}]", '
    '"answers": "[{\\"name\\": \\"rain\\", \\"arguments\\": {\\"city\\": \\"Oslo\\"}}]"}',
)
