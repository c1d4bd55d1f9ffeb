"""Where the supervised characters of a rendered row are: exact spans, found by the pieces a template puts around text.

A template is rendered once per pattern of roles with a marker in place of every content. What stands between the
markers are the template's own pieces; a real row must equal those pieces joined by its contents, which gives each
content's exact place whatever the content holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]
Strip = str | None
"""What a template strips from one side of a content, as str.strip takes it: None is all whitespace, "" nothing."""

# Whitespace that no template writes: what survives of it tells what the template strips from either side of a content
# (Qwen 3 strips newlines alone). The quotes and brackets inside a marker show a template that escapes what it is given:
# its marker is not found again.
_NEWLINES = "\n" * 5
_LEFT, _RIGHT = "\u2002\u2003", "\u2003\u2002"
_MARKER = re.compile(rf"({_NEWLINES})?({_LEFT})?\ue000(\d+)\"\\'&<\ue001({_RIGHT})?({_NEWLINES})?")


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text of one row and its supervised spans: ascending, disjoint, `[start, end)` in characters.

    `add_special_tokens`: the tokenizer adds what it adds to raw text by itself (BOS); a chat template writes its own.
    """

    text: str
    spans: tuple[Span, ...]
    add_special_tokens: bool


def marker(index: int) -> str:
    """What stands for the content of message `index` when the pieces of a template are looked for."""
    return f"{_NEWLINES}{_LEFT}\ue000{index}\"\\'&<\ue001{_RIGHT}{_NEWLINES}"


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The pieces of a template for one pattern of roles: literals[0], content, literals[1], content, ..., literals[n].

    `slots[k]` is the message whose content follows literals[k], and what the template strips from its left and right.
    """

    literals: tuple[str, ...]
    slots: tuple[tuple[int, Strip, Strip], ...]

    @classmethod
    def parse(cls, rendered: str) -> Skeleton:
        """The skeleton of a text that was rendered with markers."""
        literals: list[str] = []
        slots: list[tuple[int, Strip, Strip]] = []
        position = 0
        for match in _MARKER.finditer(rendered):
            literals.append(rendered[position : match.start()])
            newlines_before, left, index, right, newlines_after = match.groups()
            slots.append((int(index), _stripped(left, newlines_before), _stripped(right, newlines_after)))
            position = match.end()
        literals.append(rendered[position:])
        return cls(tuple(literals), tuple(slots))

    def locate(self, text: str, *, contents: Sequence[str]) -> dict[int, Span] | None:
        """The span of each message's content in `text`; None where `text` is not these pieces around `contents`."""
        spans: dict[int, Span] = {}
        position = 0
        for literal, (index, left, right) in zip(self.literals, self.slots, strict=False):
            content = contents[index].lstrip(left).rstrip(right)
            start = position + len(literal)
            end = start + len(content)
            if not text.startswith(literal, position) or not text.startswith(content, start):
                return None
            spans[index] = (start, end)
            position = end
        return spans if text[position:] == self.literals[-1] else None

    def has_once(self, indices: Sequence[int]) -> bool:
        """True where each of these messages appears exactly once."""
        present = [index for index, _, _ in self.slots]
        return all(present.count(index) == 1 for index in indices)


def _stripped(spaces: str | None, newlines: str | None) -> Strip:
    if spaces is None:
        return None
    return "\n" if newlines is None else ""


class TurnEnds:
    """Extends an assistant's span over the end-of-turn token behind it, so that stopping is learned.

    `end_tokens`: the tokenizer's special tokens; `eos_token` is appended where a template ends without one.
    """

    def __init__(self, end_tokens: Sequence[str], *, eos_token: str) -> None:
        longest_first = sorted({*end_tokens, eos_token}, key=len, reverse=True)
        self._eos_token = eos_token
        self._end = re.compile(r"\s*(" + "|".join(map(re.escape, longest_first)) + ")")
        self._eos = re.compile(r"\s*" + re.escape(eos_token))

    def close(self, text: str, *, turns: Sequence[Span]) -> tuple[str, tuple[Span, ...]]:
        """The text (with EOS appended where the template has none) and the turns with what ends them.

        The last of `turns` is the last of the text. What ends it tells what ends an earlier one: the header of the
        next turn, special as it may be, is not learned.
        """
        *earlier, (start, end) = turns
        match = self._end.match(text, end)
        if match is None:
            tail = text[end:]
            text += self._eos_token
            last = (start, len(text))
            closed = [(a, b + len(tail) if tail.strip() and text.startswith(tail, b) else b) for a, b in earlier]
            return text, (*closed, last)
        eos = self._eos.match(text, match.end())
        last = (start, eos.end() if eos else match.end())
        known = {match[1], self._eos_token}
        closed = [(a, self._earlier_end(text, b, known=known)) for a, b in earlier]
        return text, (*closed, last)

    def _earlier_end(self, text: str, end: int, *, known: set[str]) -> int:
        match = self._end.match(text, end)
        return match.end() if match and match[1] in known else end

    def ends_with_one(self, text: str) -> bool:
        """True where `text`, whitespace aside, ends with a special token."""
        bare = text.rstrip()
        return any(bare[match.start() :] == match[0] for match in [*self._end.finditer(bare)][-1:])
