"""Mutations of files, drawn from a seeded generator: of bytes, of JSON values, of lines of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzz.kinds.base import Mutate

NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**40, 2**63, -(2**63), 10**15, 1e300, -1e300, 0.5, float("nan"), float("inf"))
TEXTS = (
    "",
    " ",
    "x",
    "\0",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    "x" * 10_000,
    "../../etc",
    "NaN",
)
TOKENS = (
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b'"',
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\r",
    b"\\",
    b"%",
)


def any_of(*mutations: Mutate) -> Mutate:
    """One of several mutations, drawn."""
    return lambda content, draw: draw.choice(mutations)(content, draw)


def of_bytes(content: bytes, draw: Random) -> bytes:
    """What decay and cut transfers do: flipped bits, holes of zeros, cut ends, parts twice, parts missing."""
    spoilt = bytearray(content)
    at = draw.randrange(len(spoilt) or 1)
    length = min(draw.choice((1, 2, 8, 64, 512)), len(spoilt) - at)
    match draw.randrange(6):
        case 0:
            for _ in range(draw.choice((1, 1, 8))):
                spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
        case 1:
            del spoilt[at:]
        case 2:
            spoilt[at : at + length] = bytes(length)
        case 3:
            spoilt[at:at] = spoilt[at : at + length] * draw.choice((1, 2, 16))
        case 4:
            del spoilt[at : at + length]
        case _:
            spoilt[at:at] = draw.randbytes(length)
    return bytes(spoilt)


def near_start(limit: int) -> Mutate:
    """`of_bytes` within the first `limit` bytes, where a format has its header."""
    return lambda content, draw: of_bytes(content[:limit], draw) + content[limit:]


def near_end(limit: int) -> Mutate:
    """`of_bytes` within the last `limit` bytes, where a format has its footer."""
    return lambda content, draw: content[:-limit] + of_bytes(content[-limit:], draw)


def of_text(content: bytes, draw: Random) -> bytes:
    """What an editor, or a program that writes text by hand, does: stray tokens; lines lost, twice, indented."""
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            column = draw.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:column] + draw.choice(TOKENS) * draw.choice((1, 1, 2, 50)) + lines[at][column:]
        case 1:
            del lines[at]
        case 2:
            lines.insert(at, lines[draw.randrange(len(lines))])
        case 3:
            lines[at] = b" " * draw.choice((1, 2, 7)) + lines[at]
        case _:
            number = draw.choice(NUMBERS)
            lines[at] = lines[at].partition(b":")[0] + b": " + str(number).encode()
    return b"\n".join(lines)


def of_json(content: bytes, draw: Random) -> bytes:
    """A JSON document of which one or several values are others: hostile numbers and texts, other types, gone, deep."""
    document = json.loads(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        document = with_another_value(document, draw)
    return json.dumps(document).encode()


def of_a_part(content: bytes, draw: Random) -> bytes:
    """`of_json` in one part of an object, each as often as another, however much it holds."""
    document = json.loads(content)
    key = draw.choice(sorted(document))
    if draw.random() < 0.3 or not places_in(document[key]):
        return json.dumps(with_another_value({key: document.pop(key)}, draw) | document).encode()
    document[key] = with_another_value(document[key], draw)
    return json.dumps(document).encode()


def in_json_line(content: bytes, draw: Random) -> bytes:
    """`of_json` in one line of several."""
    lines = content.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    lines[at] = of_json(lines[at], draw) + b"\n"
    return b"".join(lines)


def with_another_value(document: Any, draw: Random) -> Any:
    """The document, of which one value, anywhere, becomes another, or is gone."""
    places = list(places_in(document))
    if not places:
        return hostile(document, draw)
    holder, key = draw.choice(places)
    if isinstance(holder, dict) and draw.random() < 0.2:
        value = holder.pop(key)
        if draw.random() < 0.5:
            holder[draw.choice(TEXTS) + str(key)] = value
    elif isinstance(holder, list) and draw.random() < 0.2:
        del holder[key]
    else:
        holder[key] = hostile(holder[key], draw)
    return document


def places_in(document: Any) -> Sequence[tuple[Any, Any]]:
    """Every (holder, key) of a document; of a long list only ends, so that a vocabulary does not outweigh all else."""
    found: list[tuple[Any, Any]] = []
    open_ones = [document]
    while open_ones:
        holder = open_ones.pop()
        keys: Sequence[Any] = ()
        if isinstance(holder, dict):
            keys = list(holder)
        elif isinstance(holder, list):
            keys = range(len(holder))
        keys = keys if len(keys) <= 40 else [*keys[:20], *keys[-20:]]
        for key in keys:
            found.append((holder, key))
            open_ones.append(holder[key])
    return found


def hostile(value: Any, draw: Random) -> Any:
    """Another value: near by (another number for a number) as often as of another type."""
    near: list[Callable[[], Any]] = [lambda: draw.choice(NUMBERS), lambda: draw.choice(TEXTS)]
    if isinstance(value, bool):
        near = [lambda: not value]
    elif isinstance(value, (int, float)):
        near = [
            lambda: draw.choice(NUMBERS),
            lambda: -value,
            lambda: value * 1000,
            lambda: value + 1,
            lambda: str(value),
        ]
    elif isinstance(value, str):
        near = [lambda: draw.choice(TEXTS), lambda: value[: len(value) // 2], lambda: value + "x", lambda: value * 100]
    other: list[Callable[[], Any]] = [
        lambda: None,
        lambda: True,
        list,
        dict,
        lambda: [value],
        lambda: {"a": value},
        lambda: nested(draw.choice((10, 500))),
        lambda: draw.choice(NUMBERS),
        lambda: draw.choice(TEXTS),
    ]
    return draw.choice(near if draw.random() < 0.5 else other)()


def nested(depth: int) -> Any:
    """Lists in lists."""
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found
