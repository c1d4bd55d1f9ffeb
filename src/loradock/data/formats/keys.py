"""What names beside a format's fields mean, in a row, in a turn and in a part of a turn: one table for all levels.

A name that a chat template would write out is refused where it is filled, since no sample carries it. One that says
what is learned is obeyed in an assistant's turn: 0 or false is context, 1 or true is learned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from loradock.data.formats.fields import RowError, is_filled, is_list, is_object

RENDERED = frozenset(("tools", "functions", "documents", "chat_template_kwargs"))
"""Written by templates wherever they stand."""
MEDIA = {"<image>": ("image", "images"), "<video>": ("video", "videos"), "<audio>": ("audio", "audios")}
"""What stands in a text for what a column of the row holds."""
RENDERED_OF_TURNS = frozenset(
    ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"),
).union(*MEDIA.values())
"""The same of a turn alone; in a row they are columns like others."""
LEARNING = frozenset(("weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale", "loss_weight"))
"""Whether, or how much, a turn is learned, as OpenAI, axolotl, swift, xtuner and others call it."""
LEARNING_INVERTED = frozenset(("mask", "masked"))
LEARNING_IN_PART = frozenset(("train_detail", "training_detail", "loss_spans"))
"""Pieces of a turn, which is learned whole or not."""
NOTHING = frozenset(("[]", "{}", "null", "none"))
"""Text in which a column of a table says that there is nothing."""


def says_something(value: object) -> bool:
    """Whether a column is filled, with more than the text of an empty list."""
    return is_filled(value) and not (isinstance(value, str) and value.strip().lower() in NOTHING)


def is_about_learning(key: str) -> bool:
    """Whether a name says what is learned."""
    return key in LEARNING or key in LEARNING_INVERTED or key in LEARNING_IN_PART


def learned(key: str, value: object) -> bool | None:
    """What such a name says: all is learned, or nothing; None where it says neither."""
    said: object = value
    if isinstance(value, str):
        try:
            said = json.loads(value.lower())
        except ValueError:
            return None
    if key in LEARNING_IN_PART or not isinstance(said, (bool, int, float)) or said not in (0, 1):
        return None
    return bool(said) != (key in LEARNING_INVERTED)


def turn_is_learned(turn: Mapping[str, Any], where: str) -> bool:
    """Whether an assistant's turn is to be learned, by all that it says about it. RowError where that is in part."""
    said = {key: learned(key, turn[key]) for key in turn if is_about_learning(key) and says_something(turn[key])}
    for key, is_whole in said.items():
        if is_whole is None:
            what = f"{where} has {key!r} = {turn[key]!r}: a turn is learned whole (1, true) or not at all (0, false)"
            raise RowError(f"{what}: write one of them, or remove the key")
    return all(said.values())


def leftovers(
    value: object, path: str, inner_keys: Collection[str] = ()
) -> Iterator[tuple[str, str, object, Mapping[str, Any]]]:
    """What the objects in a field hold beside what is read of them: place (`messages[1]`), key, value, the object.

    `inner_keys`: those that the format reads besides.
    """
    if is_list(value):
        for number, each in enumerate(value):
            if is_list(each) or is_object(each):
                yield from leftovers(each, f"{path}[{number}]", inner_keys)
    elif is_object(value):
        read = {*keys_read(value), *inner_keys}
        for key, inner in value.items():
            if key not in read:
                if is_filled(inner):
                    yield path, key, inner, value
            elif is_list(inner) or is_object(inner):
                yield from leftovers(inner, f"{path}.{key}", inner_keys)


TURN_KEYS = (
    ("role", "content"),
    ("from", "value"),
    ("speaker", "text"),
    ("speaker", "utterance"),
    ("role", "text"),
    ("type", "text"),
)
"""What holds the role and the text of a turn; the first pair that is there whole."""


def turn_keys(turn: Mapping[str, Any]) -> tuple[str, str]:
    """The keys of the role and of the text of a turn."""
    nearest = ("from", "value") if "from" in turn and "role" not in turn else ("role", "content")
    return next((keys for keys in TURN_KEYS if keys[0] in turn and keys[1] in turn), nearest)


def keys_read(value: Mapping[str, Any]) -> tuple[str, str]:
    """The keys that are read of a turn, of a part of one, or of a passage."""
    if "role" in value or "from" in value or "speaker" in value:
        return turn_keys(value)
    return ("type", "text") if "type" in value else ("title", "text")
