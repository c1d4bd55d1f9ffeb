"""Where the assistant's turns stand in a conversation that a template rendered with tools, calls or thoughts.

One rendering with a mark in the place of each question and result tells where these stand. What a template writes
around a turn is looked for once, where a turn of its kind comes first, and then only compared: the number of renderings
does not grow with the turns. A turn that differs is looked for by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from loradock.data.formats.base import Conversation, Message
from loradock.data.formats.fields import RowError
from loradock.data.spans import Span
from loradock.data.turns import Turn, TurnEnds

Rendered = Callable[..., str]
"""A conversation, `is_prompt` -> its text; RowError where the template refuses it."""
MARK, MARK_END = "\ue002mark\ue003", "\ue004"
MARKED = re.compile(rf"{MARK}(\d+){MARK_END}")
Kind = tuple[object, ...]


def mark_of(index: int) -> str:
    """What stands for a text of message `index`."""
    return f"{MARK}{index}{MARK_END}"


class Unlocated(Exception):
    """The template hides where a turn of the assistant stands."""


class TurnPlaces:
    """The places of turns in `text`, which `rendered` made of `talk`.

    `without_cut`: the same conversation without the thoughts that the template leaves out of this text.
    """

    def __init__(
        self, rendered: Rendered, talk: Conversation, text: str, *, without_cut: Conversation, ends: TurnEnds
    ) -> None:
        self._rendered, self._talk, self._text, self._ends = rendered, talk, text, ends
        self._history = without_cut.messages
        self._contents = self._located()
        self._prompts: dict[Kind, tuple[str, str]] = {}
        self._diverging: set[tuple[Kind, str]] = set()
        self._closings: dict[Kind, str] = {}

    def turn(self, index: int) -> Turn:
        """Where the turn of message `index` stands. Unlocated."""
        start, opener, unfollowed = self._start(index)
        limit = self._limit(index)
        end = self._end(index, start, limit)
        if end is None or end < start:
            raise Unlocated
        return Turn(start, end, max(limit, end), opener, unfollowed=unfollowed)

    def _located(self) -> dict[int, Span]:
        """Where the contents of questions and results stand; empty where the text is not its pieces around them."""
        messages = self._talk.messages
        marked = [
            replace(each, content=mark_of(index)) if each.role in ("user", "tool") else each
            for index, each in enumerate(messages)
        ]
        try:
            pieces = MARKED.split(self._rendered(replace(self._talk, messages=tuple(marked))))
        except RowError:
            return {}
        literals, indexes = pieces[::2], [int(number) for number in pieces[1::2]]
        if len({*indexes}) < len(indexes) or not self._text.startswith(literals[0]):
            return {}
        spans: dict[int, Span] = {}
        start = len(literals[0])
        for index, behind in zip(indexes, literals[1:], strict=True):
            ends = [
                start + len(each) for each in _written(messages[index].content) if self._text.startswith(each, start)
            ]
            end = next((place for place in ends if self._text.startswith(behind, place)), None)
            if end is None:
                return {}
            spans[index] = (start, end)
            start = end + len(behind)
        return spans if start == len(self._text) else {}

    def _start(self, index: int) -> tuple[int, str, str]:
        """Where the generation prompt of a turn ends, the special token of its header, and what is not followed."""
        if not index:
            raise Unlocated
        history = replace(self._talk, messages=self._history[:index])
        if index - 1 not in self._contents:
            prompt, history_end = self._rendered(history, is_prompt=True), self._rendered(history)
            return self._begun(0, prompt, history_end)
        _, content_end = self._contents[index - 1]
        kind = self._kind_of_prompt(index)
        if (known := self._prompts.get(kind)) and self._text.startswith(known[1], content_end):
            prompt_end = self._begun(content_end, *known)
            if not prompt_end[2] or (kind, prompt_end[2]) in self._diverging:
                return prompt_end
        *earlier, last = history.messages
        marked = replace(history, messages=(*earlier, replace(last, content=mark_of(index - 1))))
        renderings = self._rendered(marked, is_prompt=True), self._rendered(marked)
        prompt, history_end = (text.rpartition(mark_of(index - 1))[2] for text in renderings)
        prompt_end = self._begun(content_end, prompt, history_end)
        if self._prompts.setdefault(kind, (prompt, history_end)) == (prompt, history_end):
            self._diverging.add((kind, prompt_end[2]))
        return prompt_end

    def _begun(self, place: int, prompt: str, history_end: str) -> tuple[int, str, str]:
        """See `_start`; from `place` on stands what the history ends with, as a prompt and without one."""
        opener = self._ends.first_in(prompt[len(history_end) :]) if prompt.startswith(history_end) else ""
        if self._text.startswith(prompt, place):
            return place + len(prompt), opener, ""
        if self._text.startswith(history_end, place) and prompt.startswith(history_end):
            shared = len(history_end) + _shared(
                prompt[len(history_end) :], self._text[place + len(history_end) : place + len(prompt)]
            )
            return place + shared, opener, prompt[shared:]
        raise Unlocated

    def _kind_of_prompt(self, index: int) -> Kind:
        """What the prompt of a turn depends on: the messages of one role before it."""
        role, count = self._history[index - 1].role, 0
        while count < index and self._history[index - 1 - count].role == role:
            count += 1
        return role, count

    def _limit(self, index: int) -> int:
        """Where the content behind a turn begins, or the text ends; 0 where that is not known."""
        messages = self._talk.messages
        if index == len(messages) - 1:
            return len(self._text)
        if index + 1 in self._contents:
            return self._contents[index + 1][0]
        behind = self._with(index + 1, replace(messages[index + 1], content=MARK)).partition(MARK)[0]
        return len(behind) if self._text.startswith(behind) else 0

    def _end(self, index: int, start: int, limit: int) -> int | None:
        """Where what a turn says ends. Nothing of the next content belongs to it."""
        messages = self._talk.messages
        is_known = index + 1 in self._contents
        kind: Kind = ()
        if is_known:
            kind = (messages[index + 1].role, *(call.name for call in messages[index].calls))
            if kind in self._closings and self._text.endswith(self._closings[kind], start, limit):
                return limit - len(self._closings[kind])
        end = self._end_by_another_answer(index)
        if end is None or (is_known and end > limit):
            end = self._end_by_prefix(index)
        if is_known and end is not None and start <= end <= limit:
            self._closings.setdefault(kind, self._text[end:limit])
        return end

    def _end_by_another_answer(self, index: int) -> int | None:
        """What stands behind a turn stands behind any other answer in its place, too."""
        try:
            replaced = self._with(index, Message("assistant", MARK))
        except RowError:
            return None
        _, mark, behind = replaced.rpartition(MARK)
        return len(self._text) - len(behind) if mark and self._text.endswith(behind) else None

    def _end_by_prefix(self, index: int) -> int | None:
        """The conversation up to a turn ends with it."""
        prefix = self._rendered(replace(self._talk, messages=self._history[: index + 1])).rstrip()
        if not self._text.startswith(prefix):
            return None
        is_last = index == len(self._talk.messages) - 1
        return len(prefix.removesuffix(self._ends.last_in(prefix))) if is_last else len(prefix)

    def _with(self, index: int, message: Message) -> str:
        messages = self._talk.messages
        return self._rendered(replace(self._talk, messages=(*messages[:index], message, *messages[index + 1 :])))


def _written(content: str) -> Iterable[str]:
    """A content as templates write it: as it is, without white space around it, or as JSON."""
    return dict.fromkeys((content, content.strip(), content.rstrip(), content.lstrip(), _quoted(content)))


def _quoted(content: str) -> str:
    return json.dumps(content, ensure_ascii=False)[1:-1]


def _shared(prompt: str, text: str) -> int:
    """How many characters both begin with; a tag that one of them goes on with in another way belongs to neither."""
    pairs = zip(prompt, text, strict=False)
    length = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(text)))
    opened = prompt.rfind("<", 0, length)
    return opened if opened > prompt.rfind(">", 0, length) else length
