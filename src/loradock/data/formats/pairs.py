"""Queries with passages, as GritLM, FlagEmbedding, sentence-transformers, Tevatron and swift write them.

A side is a text, or a pair of an instruction and a text (GritLM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loradock.data.formats.base import Format, Pairs, Side
from loradock.data.formats.fields import (
    Misfit,
    Row,
    RowError,
    check_text,
    is_filled,
    is_list,
    is_object,
    optional_text_of,
    text_of,
    type_of,
    value_of,
)
from loradock.data.formats.turns import messages_of

MOST_NEGATIVES = 16
"""Columns negative_1, negative_2, ... that sentence-transformers' layout may have."""
SIDE = "a text, or a pair [instruction, text]"

AsSide = Callable[[object, str], Side]


def pairs(query: Side, positives: Sequence[Side], negatives: Sequence[Side]) -> Pairs:
    """The row's sample. RowError for an empty text, for no positive, and for a positive that is a negative, too."""
    for where, sides in (("query", [query]), ("positive", positives), ("negative", negatives)):
        for number, side in enumerate(sides, 1):
            if not side.text or side.text.isspace():
                name = where if len(sides) == 1 else f"{where} {number}"
                raise RowError(f"the text of the {name} is empty: there is nothing to embed")
    if not positives:
        raise RowError("there is no positive: nothing says which passage belongs to the query")
    both = {side.text for side in positives} & {side.text for side in negatives}
    if both:
        raise RowError(f"a positive is among the negatives: {min(both)[:60]!r}")
    return Pairs(query, tuple(positives), tuple(negatives))


def side_of(value: object, where: str) -> Side:
    """A side: text, or [instruction, text]."""
    if type(value) is str:
        check_text(value, where)
        return Side("", value)
    if is_list(value):
        if len(value) != 2 or type(value[0]) is not str or type(value[1]) is not str:
            raise RowError(f"{where} is a list of {len(value)}; a side is {SIDE}")
        for part in value:
            check_text(part, where)
        return Side(value[0], value[1])
    raise Misfit(f"{where} is {type_of(value)}, not {SIDE}")


def sides_of(value: object, where: str, as_side: AsSide = side_of) -> list[Side]:
    """The sides of a list, all of one shape; nothing is an empty list. RowError where shapes are mixed."""
    if not is_filled(value):
        return []
    if not is_list(value):
        raise Misfit(f"{where} is {type_of(value)}, not a list of passages")
    shapes = {type_of(each) for each in value}
    if len(shapes) > 1:
        raise RowError(f"{where} mixes {' and '.join(sorted(shapes))}: write all sides as {SIDE}")
    return [as_side(each, f"{where}[{number}]") for number, each in enumerate(value)]


def _listed(row: Row) -> Pairs:
    """GritLM's and FlagEmbedding's rows; `prompt` is the instruction of the query where it has none of its own."""
    query = side_of(value_of(row, "query"), "query")
    prompt = optional_text_of(row, "prompt")
    if prompt and query.instruction:
        raise RowError("the query has an instruction, and there is a prompt: one of them only")
    return pairs(
        Side(prompt or query.instruction, query.text),
        sides_of(value_of(row, "pos"), "pos"),
        sides_of(row.get("neg"), "neg"),
    )


def _anchored(row: Row) -> Pairs:
    """sentence-transformers' rows: one passage a column, or several in a list."""

    def column(name: str) -> list[Side]:
        value = row.get(name)
        return sides_of(value, name) if is_list(value) else [Side("", text_of(row, name))]

    names = [name for name in NEGATIVES if is_filled(row.get(name))]
    anchor = Side(optional_text_of(row, "prompt"), text_of(row, "anchor"))
    value_of(row, "positive")
    return pairs(anchor, column("positive"), [side for name in names for side in column(name)])


def _with_titles(row: Row) -> Pairs:
    """Tevatron's rows: passages are objects with a text and perhaps a title, which is read before it."""

    def passage(value: object, where: str) -> Side:
        if not is_object(value):
            return side_of(value, where)
        title, text = optional_text_of(value, "title"), text_of(value, "text")
        return Side("", f"{title} {text}" if title else text)

    query = Side(optional_text_of(row, "prompt"), text_of(row, "query"))
    positives, negatives = (
        sides_of(row.get(name), name, passage) for name in ("positive_passages", "negative_passages")
    )
    return pairs(query, positives, negatives)


def _turns(row: Row) -> Pairs:
    """swift's rows: each side is a list of turns; a system turn is the instruction."""
    query = _of_turns(value_of(row, "messages"), "messages")
    positives = sides_of(row.get("positive_messages"), "positive_messages", _of_turns)
    return pairs(query, positives, sides_of(row.get("negative_messages"), "negative_messages", _of_turns))


def _of_turns(value: Any, where: str) -> Side:
    messages = messages_of([value] if is_object(value) else value, where)
    instruction = [message.content for message in messages if message.role == "system"]
    texts = [message.content for message in messages if message.role != "system"]
    if len(texts) != 1 or len(instruction) > 1:
        raise RowError(f"{where} holds {len(messages)} turns: one with the text, and perhaps a system turn before it")
    return Side("".join(instruction), texts[0])


NEGATIVES = ("negative", *(f"negative_{number}" for number in range(1, MOST_NEGATIVES + 1)))

PAIRS = Format(
    name="pairs",
    fields=("query", "pos", "neg", "prompt"),
    required=("query", "pos"),
    kind="pairs",
    convert=_listed,
    example='{"query": ["Find the answer", "How tall is K2?"], "pos": [["", "8,611 m."]], "neg": [["", "A dog."]]}',
)
SENTENCE_TRANSFORMERS = Format(
    name="sentence-transformers",
    fields=("anchor", "positive", *NEGATIVES, "prompt"),
    required=("anchor", "positive"),
    kind="pairs",
    convert=_anchored,
    example='{"anchor": "How tall is K2?", "positive": "K2 has 8,611 m.", "negative": "A dog barks."}',
)
TEVATRON = Format(
    name="tevatron",
    fields=("query", "positive_passages", "negative_passages", "prompt"),
    required=("query", "positive_passages"),
    kind="pairs",
    convert=_with_titles,
    example='{"query": "How tall is K2?", "positive_passages": [{"title": "K2", "text": "8,611 m."}]}',
)
SWIFT = Format(
    name="swift",
    fields=("messages", "positive_messages", "negative_messages"),
    required=("messages", "positive_messages"),
    kind="pairs",
    convert=_turns,
    example='{"messages": [{"role": "user", "content": "How tall is K2?"}], '
    '"positive_messages": [[{"role": "user", "content": "8,611 m."}]]}',
)
