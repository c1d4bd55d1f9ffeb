"""Where the supervised characters of a rendered row are: exact spans, found by the pieces a template puts around text.

A template is rendered once per pattern of roles with a marker in place of every content. What stands between the
markers are the template's own pieces; a real row must equal those pieces joined by its contents, which gives each
content's exact place whatever the content holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Span = tuple[int, int]
Strip = str | None
"""What a template strips from one side of a content, as str.strip takes it: None is all whitespace, "" nothing."""

# Whitespace that no template writes: what survives of it tells what the template strips from either side of a content
# (Qwen 3 strips newlines alone). The quotes and brackets inside a marker show a template that escapes what it is given:
# its marker is not found again.
_NEWLINES = "\n" * 5
MARK = "\ue000"
_LEFT, _RIGHT = "\u2002\u2003", "\u2003\u2002"
_MARKER = re.compile(rf"({_NEWLINES})?({_LEFT})?{MARK}(\d+)\"\\'&<\ue001({_RIGHT})?({_NEWLINES})?")


class Remark(NamedTuple):
    """A kind of row that is told of (`remarks`); `detail` is the text that it is about."""

    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text of one row and its supervised spans: ascending, disjoint, `[start, end)` in characters.

    `add_special_tokens`: the tokenizer adds what it adds to raw text by itself (BOS); a chat template writes its own.
    `special_texts`: where contents, not the template, hold the text of a special token. `remarks`: what is to be told
    of the row.
    """

    text: str
    spans: tuple[Span, ...]
    add_special_tokens: bool
    special_texts: tuple[Span, ...] = ()
    remarks: tuple[Remark, ...] = ()


def marker(index: int) -> str:
    """What stands for the content of message `index` when the pieces of a template are looked for."""
    return f"{_NEWLINES}{_LEFT}{MARK}{index}\"\\'&<\ue001{_RIGHT}{_NEWLINES}"


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

    def locate(self, text: str, *, contents: Sequence[str]) -> list[Span] | None:
        """The span of each slot's content in `text`; None where `text` is not these pieces around `contents`."""
        spans: list[Span] = []
        position = 0
        for literal, (index, left, right) in zip(self.literals, self.slots, strict=False):
            content = contents[index].lstrip(left).rstrip(right)
            start = position + len(literal)
            end = start + len(content)
            if not text.startswith(literal, position) or not text.startswith(content, start):
                return None
            spans.append((start, end))
            position = end
        return spans if text[position:] == self.literals[-1] else None

    def slot_of(self, index: int) -> int | None:
        """The slot of a message that appears exactly once; None for any other."""
        present = [slot for slot, (message, _, _) in enumerate(self.slots) if message == index]
        return present[0] if len(present) == 1 else None

    def messages(self) -> list[int | None]:
        """The message of each slot in order, between two None: where the text begins, and where it ends."""
        return [None, *(message for message, _, _ in self.slots), None]


def _stripped(spaces: str | None, newlines: str | None) -> Strip:
    if spaces is None:
        return None
    return "\n" if newlines is None else ""
