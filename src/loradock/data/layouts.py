"""Where the turns of a rendered conversation stand: what a template writes around contents is found with markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loradock.data.formats.base import Message
from loradock.data.formats.fields import RowError
from loradock.data.spans import MARK, Skeleton, Span, marker
from loradock.data.turns import Place, Prompt, Turn, TurnEnds

PATTERNS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """The pieces of a template for one pattern of roles, and around its turns as far as they were looked for."""

    skeleton: Skeleton
    places: dict[int, Place | None] = field(default_factory=dict[int, "Place | None"])


@dataclass(frozen=True, slots=True)
class Located:
    """The turns of a row by message, and where what others say stands, or all that is said (`has_spoken`)."""

    turns: dict[int, Turn]
    spans: list[Span]
    has_spoken: bool

    @property
    def contents(self) -> list[Span]:
        """Where all contents stand."""
        spoken = [] if self.has_spoken else [(turn.start, turn.end) for turn in self.turns.values()]
        return sorted([*self.spans, *spoken])


class Layouts:
    """The layouts of one template by the roles of a conversation, each found once.

    `render` makes text of messages, or of a prompt; RowError where the template refuses them.
    """

    def __init__(self, render: Callable[[Sequence[Message], bool], str], *, ends: TurnEnds) -> None:
        self._render, self._ends = render, ends
        self._layouts: dict[tuple[tuple[str, str | None], ...], Layout | None] = {}

    def located(
        self, text: str, *, messages: Sequence[Message], turns: list[int], learned: list[int]
    ) -> Located | None:
        """The learned turns where the text is the template's pieces around its contents, whatever these hold.

        Where a template changes what the assistant says (it cuts thoughts), they are what stands between the others.
        """
        layout = self._layout(messages)
        if layout is None:
            return None
        contents = [message.content for message in messages]
        spans, around = layout.skeleton.locate(text, contents=contents), None
        if spans is None:
            around = self.skeleton(messages, spoken=frozenset(["assistant"])) if MARK not in text else None
            spans = around and around.locate(text, contents=contents)
        if spans is None:
            return None
        found: dict[int, Turn] = {}
        for index in turns if around else learned:
            place = self._place(layout, messages, index)
            bounds = place and place.bounds(spans, around=around, length=len(text))
            turn = place.turn(text, *bounds) if place and bounds else None
            if not turn:
                return None
            found[index] = turn
        return Located(found, spans, has_spoken=around is None)

    def _layout(self, messages: Sequence[Message]) -> Layout | None:
        pattern = tuple((m.role, None if m.content.strip() else m.content) for m in messages)
        if pattern not in self._layouts:
            if len(self._layouts) >= PATTERNS_KEPT:
                self._layouts.clear()
            skeleton = self.skeleton(messages)
            self._layouts[pattern] = skeleton and Layout(skeleton)
        return self._layouts[pattern]

    def skeleton(
        self, messages: Sequence[Message], *, prompt: bool = False, spoken: frozenset[str] = frozenset()
    ) -> Skeleton | None:
        """The pieces around markers in place of contents, of `spoken` roles excepted; None where it is refused."""
        marked = [
            Message(each.role, marker(index)) if each.content.strip() and each.role not in spoken else each
            for index, each in enumerate(messages)
        ]
        try:
            return Skeleton.parse(self._render(marked, prompt))
        except RowError:
            return None

    def _place(self, layout: Layout, messages: Sequence[Message], index: int) -> Place | None:
        """What stands around a turn; None where its content is not there exactly once."""
        if index not in layout.places:
            slot, before = layout.skeleton.slot_of(index), messages[:index]
            asking = self.skeleton(before, prompt=True) if before else None
            prompt = asking and Prompt.of(asking, told=self.skeleton(before), ends=self._ends)
            layout.places[index] = None if slot is None else Place.of(layout.skeleton, slot=slot, prompt=prompt)
        return layout.places[index]
