"""Where the answers of a rendered conversation stand, where its layout or its template's own blocks say so or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from loradock.data.formats.base import Message
from loradock.data.formats.fields import RowError
from loradock.data.spans import Span
from loradock.data.turns import Turn, TurnEnds

ADVICE = "name a template (--set data.template=alpaca needs no special tokens) or use one with {% generation %} blocks"


Render = Callable[..., tuple[str, list[Span]]]
"""Of turns, and whether they are a prompt: the text, and the spans of its {% generation %} blocks."""


class AnswerSpans:
    """Of the conversations that `render` renders by the template called `name`."""

    def __init__(self, render: Render, *, name: str, ends: TurnEnds, eos_token: str) -> None:
        self._render, self._name, self._ends, self._eos_token = render, name, ends, eos_token

    def closed(
        self,
        text: str,
        *,
        found: list[Turn] | None,
        messages: Sequence[Message],
        turns: list[int],
        blocks: Mapping[int, Span],
    ) -> tuple[str, tuple[Span, ...]]:
        """The turns with what ends them; {% generation %} blocks say where that is."""
        ended = self._ended_by_blocks(text, messages=messages, turns=turns, blocks=blocks)
        if not found:
            found = ended and self._begun_by_prompts(text, messages=messages, turns=turns, found=ended)
        if not found:
            return self._from_prefixes(text, messages=messages, turns=turns)
        if ended:
            found = [Turn(a.start, b.end, max(a.limit, b.end), a.opener) for a, b in zip(found, ended, strict=True)]
            if all(self._ends.ends_with_one(text[turn.start : turn.end]) for turn in found):
                return text, tuple((turn.start, turn.end) for turn in found)
        return self._ends.close(text, turns=found)

    def _ended_by_blocks(
        self, text: str, *, messages: Sequence[Message], turns: list[int], blocks: Mapping[int, Span]
    ) -> list[Turn] | None:
        """The turns as {% generation %} blocks have them; None where there are none, or one lacks its content."""
        if not blocks or any(messages[i].content.strip() not in text[slice(*blocks[i])] for i in turns):
            return None
        limits = {index: start for index, (start, _) in zip(blocks, [*blocks.values()][1:], strict=False)}
        return [Turn(*blocks[index], limits.get(index, len(text))) for index in turns]

    def _begun_by_prompts(
        self, text: str, *, messages: Sequence[Message], turns: list[int], found: list[Turn]
    ) -> list[Turn]:
        """The turns with their beginnings from the conversation before each, rendered as a prompt."""
        begun: list[Turn] = []
        for index, turn in zip(turns, found, strict=True):
            before = self._render(messages[:index], prompt=True)[0] if index else ""
            start = len(before) if index and text.startswith(before) and len(before) <= turn.end else turn.start
            begun.append(Turn(start, turn.end, turn.limit))
        return begun

    def _from_prefixes(
        self, text: str, *, messages: Sequence[Message], turns: list[int]
    ) -> tuple[str, tuple[Span, ...]]:
        """Spans from ever longer prefixes: a turn is what stands between its prompt and the end of the next prefix.

        The prefix ends with the turn's own end tokens, so that only a missing EOS at the very end is left to add.
        """
        spans: list[Span] = []
        for index in turns:
            before, _ = self._render(messages[:index], prompt=True)
            upto, _ = self._render(messages[: index + 1])
            if not (text.startswith(before) and text.startswith(upto) and len(before) < len(upto)):
                alone = "" if len(turns) == 1 else ", or learn the last answer alone (--set data.loss=completion)"
                raise RowError(
                    f"template {self._name}: cannot locate the assistant's text in the rendered conversation; "
                    f"{ADVICE}{alone}"
                )
            spans.append((len(before), len(before) + len(upto[len(before) :].rstrip())))
        if not self._ends.ends_with_one(text):
            start, _ = spans[-1]
            text += self._eos_token
            spans[-1] = (start, len(text))
        return text, tuple(spans)

    def check(self, text: str, spans: Sequence[Span], *, answers: Sequence[str]) -> None:
        """RowError where nothing of what the assistant says is in the span that is learned for it."""
        for (start, end), answer in zip(spans, answers, strict=False):
            words = re.findall(r"\w+", answer)
            if words and not any(word in text[start:end] for word in words):
                raise RowError(f"template {self._name} leaves out what the assistant says; {ADVICE}")
