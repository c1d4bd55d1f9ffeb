"""JSON as the readers want it: the standard decoder, less what it lets pass silently."""

from __future__ import annotations

import json
from typing import Any


class StrictDecoder:
    """Decodes like `json`, and notes duplicate keys, NaN and Infinity in `flaws` instead of taking them.

    The notes let a reader refuse one row and still know where the next one starts. `flaws` belongs to the value
    decoded last; the reader clears it.
    """

    def __init__(self) -> None:
        self.flaws: list[str] = []
        decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)
        self.decode = decoder.decode
        self.raw_decode = decoder.raw_decode

    def take_flaws(self) -> str:
        """The notes on the value decoded last, as one text; forgets them."""
        text = "; ".join(dict.fromkeys(self.flaws))
        self.flaws.clear()
        return text

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.flaws.append(f"key {key!r} appears twice in one object")
                seen.add(key)
        return row

    def _constant(self, name: str) -> None:
        self.flaws.append(f"{name} is not JSON (write null, or a string)")


def not_an_object(value: object) -> str:
    """What to say of a row that is not an object."""
    return f"the row is {json_type(value)}, not an object with named fields"


def json_type(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names[type(value)]
