"""Calls of tools: what the model generates, read as the template writes calls, and compared as values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from loradock.data.call_readers import Unread
from loradock.data.formats.base import ToolCall
from loradock.use.evaluation.items import Item, calls_shown
from loradock.use.evaluation.methods.generate import Greedy
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.decoding import Answer


class Calls(Greedy):
    """Right where it calls what the row's answer does, in any order.

    A row whose answer is no call is right where there is none. What cannot be read is wrong. The opened template must
    have a syntax of calls.
    """

    name = "calls"

    def outcome(self, item: Item, answer: Answer) -> Outcome:
        """See `Greedy`."""
        text = self.opened.written(answer.ids)
        syntax = self.opened.prompts.call_syntax
        assert syntax is not None
        tools: Any = getattr(item.sample, "tools", ())
        calls, unread = None, None
        try:
            calls = syntax.read(text, tools)
        except Unread as error:
            unread = str(error)
        return Outcome(
            row=item.row,
            key=item.key,
            place=item.place,
            answer=item.answer,
            given="" if calls is None else calls_shown(calls),
            score=float(calls is not None and same(calls, item.calls)),
            names=float(calls is not None and _names(calls) == _names(item.calls)),
            unread=unread,
            text=text,
            finish=answer.finish,
        )


def same(calls: Sequence[ToolCall], right: Sequence[ToolCall]) -> bool:
    """Whether they call the same tools with the same arguments, in any order.

    Arguments are values: neither the order of keys nor how a number is written matters; 1 and "1" differ.
    """
    return Counter(map(_value, calls)) == Counter(map(_value, right))


def _names(calls: Iterable[ToolCall]) -> Counter[str]:
    return Counter(call.name for call in calls)


def _value(call: ToolCall) -> str:
    return json.dumps([call.name, _plain(call.arguments)], sort_keys=True)


def _plain(value: Any) -> Any:
    """A value whose whole numbers are integers: 2.0 is 2."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
