"""Where an assistant's turn begins and ends: all between the prompt as inference renders it and the end of the turn.

The prompt of a turn is the conversation before it with `add_generation_prompt=True`. What the template writes behind
that prompt and in front of the content (an empty thought, a channel's name, a space) is the model's to generate, and
so is what ends the turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loradock.data.spans import Skeleton, Span


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn in a rendered text: what is generated begins at `start`, the content ends at `end`.

    `limit` is where the next content begins, or the text ends. `opener` is the special token that a header of this
    template opens with, "" where it is not known. `opening` is what stands between `start` and the content, None where
    that is not known; `unfollowed` is the end of the generation prompt where the row goes another way than that.
    """

    start: int
    end: int
    limit: int
    opener: str = ""
    opening: str | None = None
    unfollowed: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the prompt of a turn writes behind the content of message `after` (None: from the beginning of the text)."""

    after: int | None
    piece: str
    opener: str

    @classmethod
    def of(cls, asking: Skeleton, *, told: Skeleton | None, ends: TurnEnds) -> Prompt:
        """From the pieces of the conversation before the turn, with the generation prompt and without it."""
        piece = asking.literals[-1]
        own = told.literals[-1] if told else piece
        header = piece[len(own) :] if piece.startswith(own) else ""
        return cls(asking.slots[-1][0] if asking.slots else None, piece, ends.first_in(header))


@dataclass(frozen=True, slots=True)
class Place:
    """What stands around a turn's content in the pieces of a template.

    `written` is the literal in front of the content, `behind` the one after it, and `neighbours` are the messages whose
    contents come before and after these. `piece` is what the prompt writes in the place of `written`.
    """

    slot: int
    written: str
    behind: str
    neighbours: tuple[int | None, int | None]
    piece: str
    opener: str

    @classmethod
    def of(cls, skeleton: Skeleton, *, slot: int, prompt: Prompt | None) -> Place:
        """The place of a slot. Without a prompt that goes on from the same content, a turn begins at its content."""
        written, behind = skeleton.literals[slot : slot + 2]
        messages = skeleton.messages()
        before, after = messages[slot], messages[slot + 2]
        is_known = prompt is not None and prompt.after == before
        opener = prompt.opener if prompt else ""
        return cls(slot, written, behind, (before, after), prompt.piece if prompt and is_known else written, opener)

    def bounds(self, spans: Sequence[Span], *, around: Skeleton | None, length: int) -> Span | None:
        """Where the content before the turn ends and the one behind it begins, in a text of that length.

        `spans` are those of the slots: of the pieces that this is a place in, or of `around`, which has fewer contents;
        None where other contents stand between, or none.
        """
        if around is None:
            following = self.slot + 1
            first = spans[self.slot - 1][1] if self.slot else 0
            return first, spans[following][0] if following < len(spans) else length
        edges = zip(around.messages(), [(0, 0), *spans, (length, length)], strict=True)
        pairs = pairwise(edges)
        found = [(a[1], b[0]) for (one, a), (other, b) in pairs if (one, other) == self.neighbours]
        return found[0] if len(found) == 1 else None

    def turn(self, text: str, first: int, limit: int) -> Turn | None:
        """The turn between these bounds; None where the pieces are not there.

        Where the prompt goes another way (it opens a thought, the row has none) the turn begins where they part.
        """
        end = limit - len(self.behind)
        is_followed = text.startswith(self.piece, first)
        shared = len(self.piece) if is_followed else _shared(self.piece, self.written, text[first:limit])
        start, content = first + shared, first + len(self.written)
        if end < start or not text.startswith(self.behind, end):
            return None
        opening = text[start:content] if text.startswith(self.written, first) else None
        return Turn(start, end, limit, self.opener, opening, self.piece[shared:])


def _shared(*texts: str) -> int:
    """How many characters all of these begin with."""
    return next(
        (number for number, each in enumerate(zip(*texts, strict=False)) if len({*each}) > 1), len(min(texts, key=len))
    )


class TurnEnds:
    """Extends an assistant's turn over what ends it, so that stopping is learned.

    `end_tokens`: the tokenizer's special tokens; `eos_token` is appended where a template ends without one.
    """

    def __init__(self, end_tokens: Sequence[str], *, eos_token: str) -> None:
        longest_first = sorted({*end_tokens, eos_token}, key=len, reverse=True)
        self._eos_token = eos_token
        self._end = re.compile(r"\s*(" + "|".join(map(re.escape, longest_first)) + ")")

    def close(self, text: str, *, turns: Sequence[Turn]) -> tuple[str, tuple[Span, ...]]:
        """The text (with EOS appended where the template has none) and the turns with what ends them.

        The last of `turns` is the last of the text: the first special tokens behind it end it, plain text before these
        included. What ends it tells what ends an earlier one, and so does the special token that the next header opens
        with: no header is learned.
        """
        *earlier, last = turns
        tail = text[last.end : last.limit]
        ending = self._tokens(tail)
        plain = "" if ending else tail
        if not ending and (behind := self._end.search(tail)):
            ending = self._tokens(tail, behind.start())
            plain = tail[: ending[-1][1]]
        if ending:
            end = last.end + ending[-1][1]
        else:
            text += self._eos_token
            end = len(text)
        known = {self._eos_token, *(token for token, _ in ending)}
        closed = [(turn.start, self._earlier_end(text, turn, known=known, plain=plain)) for turn in earlier]
        return text, (*closed, (last.start, end))

    def _earlier_end(self, text: str, turn: Turn, *, known: set[str], plain: str) -> int:
        tail = text[turn.end : turn.limit]
        reached = 0
        for token, end in self._tokens(tail):
            if token not in known:
                break
            reached = end
        if not reached and turn.opener and (header := tail.find(turn.opener)) > 0:
            reached = len(tail[:header].rstrip())
        if not reached and plain.strip() and tail.startswith(plain):
            reached = len(plain)
        return turn.end + reached

    def _tokens(self, tail: str, start: int = 0) -> list[tuple[str, int]]:
        """The special tokens that `tail` goes on with from `start`, white space aside, and where each ends."""
        found: list[tuple[str, int]] = []
        while match := self._end.match(tail, found[-1][1] if found else start):
            found.append((match[1], match.end()))
        return found

    def first_in(self, header: str) -> str:
        """The special token that a header opens with; "" where it opens with none."""
        match = self._end.match(header)
        return match[1] if match else ""

    def ends_with_one(self, text: str) -> bool:
        """True where `text`, whitespace aside, ends with a special token."""
        return bool(self.last_in(text.rstrip()))

    def last_in(self, text: str) -> str:
        """The special token that `text` ends with; "" where it ends with none."""
        return next((match[1] for match in [*self._end.finditer(text)][-1:] if match.end() == len(text)), "")
