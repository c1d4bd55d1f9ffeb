"""A field of a manifest with its place, and what is found at one.

A manifest may hold anything, so a rule asks a `Field`: what is absent or of another type reads as empty, never as an
error. Kubernetes takes null for absent, and so does a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, cast

from loradock.config.strict_yaml import KeyPath
from loradock.delivery.kubernetes.quantities import number

Level = Literal["error", "warning"]
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One thing that a rule found: the place, what is wrong there, and a remedy.

    `level` is the rule's own where it is None; `line` the place's, unless it is known better.
    """

    path: KeyPath
    what: str
    remedy: str
    level: Level | None = None
    line: int | None = None


@dataclass(frozen=True)
class Field:
    """A value somewhere in a manifest, and its path; `value` is None where there is none."""

    value: object
    path: KeyPath = ()

    def __getitem__(self, key: str) -> Field:
        """The field below, absent where this is no mapping or lacks the key."""
        return Field(self._mapping.get(key), (*self.path, key))

    def __iter__(self) -> Iterator[Field]:
        """The entries of a list; none where this is no list."""
        entries = cast("list[object]", self.value) if isinstance(self.value, list) else []
        return (Field(entry, (*self.path, index)) for index, entry in enumerate(entries))

    def __bool__(self) -> bool:
        """True where something stands here, be it false or 0."""
        return self.value is not None

    def at(self, dotted: str) -> Field:
        """The field some levels below: `at("securityContext.capabilities")`."""
        field = self
        for key in dotted.split("."):
            field = field[key]
        return field

    @property
    def members(self) -> tuple[tuple[str, Field], ...]:
        """Each key with its field; none where this is no mapping."""
        return tuple((str(key), self[key]) for key in self._mapping)

    @property
    def text(self) -> str:
        """The text that stands here, else an empty one."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def whole(self) -> int | None:
        """The whole number that stands here, if one does."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def count(self) -> int | None:
        """The number of things that stands here, as a number or in digits, if one does."""
        is_digits = self.text.isascii() and self.text.isdecimal() and len(self.text) < 10
        return int(self.text) if is_digits else self.whole

    @property
    def amount(self) -> Decimal | None:
        """The number that the quantity here stands for, in its unit (cores, bytes, pieces), if it is one."""
        is_one = isinstance(self.value, int | float | str) and not isinstance(self.value, bool)
        return number(str(self.value)) if is_one else None

    def found(self, what: str, remedy: str, *, level: Level | None = None) -> Found:
        """Something wrong at this place; `what` goes on after the place's name."""
        return Found(path=self.path, what=f"{shown(self.path)} {what}", remedy=remedy, level=level)

    @property
    def _mapping(self) -> Mapping[str, object]:
        return cast("dict[str, object]", self.value) if isinstance(self.value, dict) else {}


def shown(path: KeyPath) -> str:
    """The path as Kubernetes writes it: spec.containers[0].image."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text or "the object"
