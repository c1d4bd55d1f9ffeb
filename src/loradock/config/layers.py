"""Layers: defaults < preset < file < command line, merged key by key, each key with the place it came from.

A mapping merges with what lies below it; a list or a single value replaces it. Keys that the schema does not know are
refused here, so that each layer's mistakes are found even where a later layer overrides them.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from loradock.config.fields import annotation_at, item_of, path_in, section_of
from loradock.config.strict_yaml import KeyPath
from loradock.config.suggest import dotted, unknown_key
from loradock.errors import Problem, UsageError

Value = object


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value came from. `is_choice` is False for a preset, which the user took as a whole."""

    label: str
    file: str | None = None
    line: int | None = None
    is_choice: bool = True

    def problem(self, what: str, *, hint: str | None = None) -> Problem:
        """A problem at this place."""
        return Problem(what=what, file=self.file or self.label, line=self.line, hint=hint)


Places = Callable[[KeyPath], Origin]


@dataclass(kw_only=True)
class Layers:
    """The merged values so far, the origin of each dotted key, and what was wrong with single keys.

    `expand` is done to each path. `unsettled` are keys that the user tried to set and could not; rules about them
    would only confuse.
    """

    expand: Callable[[str], str]
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    origins: dict[str, Origin] = field(default_factory=dict[str, Origin])
    problems: list[Problem] = field(default_factory=list[Problem])
    unsettled: set[str] = field(default_factory=set[str])

    def put(self, path: KeyPath, value: Value, *, places: Places) -> None:
        """Lay `value` over what stands at `path`; `places` gives the origin of a key path below it."""
        annotation = annotation_at(path)
        if annotation is None:
            unknown = unknown_key(path)
            self.refuse(path, places(path), unknown.what, hint=unknown.hint, meant=unknown.meant)
        elif isinstance(path[-1], int) and isinstance(value, str) and section_of(annotation) is not None:
            self.put((*path, "path"), value, places=places)
        elif section_of(annotation) is not None:
            self._put_section(path, value, places=places)
        else:
            self._put_value(path, self._known_items(path, value, annotation, places), places=places)

    def refuse(
        self, path: KeyPath, origin: Origin, what: str, *, hint: str | None = None, meant: str | None = None
    ) -> None:
        """Note a problem at `path`, whose value is then not set."""
        self.problems.append(origin.problem(what, hint=hint))
        self.unsettled.add(meant or dotted(path))

    def origin_of(self, key: str) -> Origin | None:
        """The origin of a dotted key, or of the nearest key above it that was set."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return None

    def _put_section(self, path: KeyPath, value: Value, *, places: Places) -> None:
        if isinstance(value, dict):
            for key, inner in cast("dict[str, Value]", value).items():
                self.put((*path, key), inner, places=places)
        elif value is not None:
            hint = f"write {_EXAMPLES.get(dotted(path), 'key: value')} below it, indented"
            self.refuse(path, places(path), f"{dotted(path)} is a section with keys of its own", hint=hint)

    def _put_value(self, path: KeyPath, value: Value, *, places: Places) -> None:
        if wrong := next(_unprintable(value), None):
            what, hint = wrong
            self.refuse(path, places(path), f"{dotted(path)} holds {what}", hint=hint)
            return
        value = self._expanded(path, value, places)
        container, last = self._container(path), path[-1]
        if isinstance(container, list) and isinstance(last, int) and last <= len(container):
            container[last : last + 1] = [value]
        elif isinstance(container, dict):
            container[str(last)] = value
        else:
            what = f"{dotted(path)} cannot be set: there is nothing at {dotted(path[:-1])} that holds it"
            self.refuse(path, places(path), what, hint="positions count from 0, without gaps")
            return
        self._forget(dotted(path))
        for below in _paths(value, path):
            self.origins[dotted(below)] = places(below)

    def _expanded(self, path: KeyPath, value: Value, places: Places) -> Value:
        """The value with the paths in it expanded; what cannot be is refused where it stands."""
        if isinstance(value, dict):
            items = cast("dict[str, Value]", value).items()
            return {key: self._expanded((*path, key), inner, places) for key, inner in items}
        if isinstance(value, list):
            entries = enumerate(cast("list[Value]", value))
            return [self._expanded((*path, index), inner, places) for index, inner in entries]
        bound = path_in(annotation_at(path)) if isinstance(value, str) else None
        if not isinstance(value, str) or bound is None:
            return value
        before, after, rest = value.partition(bound.after) if bound.after else ("", "", value)
        try:
            return before + after + self.expand(rest)
        except UsageError as error:
            self.refuse(path, places(path), f"{dotted(path)}: {error.what}", hint=error.hint)
            return value

    def _container(self, path: KeyPath) -> list[Value] | dict[str, Value] | None:
        """What holds the value at `path`, made where it is missing; None where a single value stands in the way."""
        here: Value = cast("Value", self.values)
        for depth, part in enumerate(path[:-1], start=1):
            is_list = item_of(annotation_at(path[:depth])) is not None
            empty: Value = list[Value]() if is_list else dict[str, Value]()
            if isinstance(here, dict):
                here = cast("dict[str, Value]", here).setdefault(str(part), empty)
            elif isinstance(here, list) and isinstance(part, int):
                items = cast("list[Value]", here)
                if part > len(items):
                    return None
                if part == len(items):
                    items.append(empty)
                here = items[part]
            else:
                return None
        return cast("list[Value] | dict[str, Value]", here) if isinstance(here, list | dict) else None

    def _forget(self, key: str) -> None:
        for old in [origin for origin in self.origins if origin == key or origin.startswith(f"{key}.")]:
            del self.origins[old]

    def _known_items(self, path: KeyPath, value: Value, annotation: Any, places: Places) -> Value:
        """A list of sections with its shorthands written out and its unknown keys refused; other values as they are."""
        section = section_of(item_of(annotation))
        if section is None:
            return value
        entries: Value = [cast("Value", value)] if isinstance(value, str | dict) else value
        if not isinstance(entries, list):
            return entries
        items: list[Value] = []
        for index, item in enumerate(cast("list[Value]", entries)):
            known: Value = {"path": item} if isinstance(item, str) else item
            if isinstance(known, dict):
                known = dict(cast("dict[str, Value]", known))
                for key in [key for key in known if key not in section.model_fields]:
                    del known[key]
                    unknown = unknown_key((*path, index, key))
                    self.refuse((*path, index, key), places((*path, index, key)), unknown.what, hint=unknown.hint)
            items.append(known)
        return items


_EXAMPLES = {"model": "name: DIR", "data": "sources: [FILE]"}


def _paths(value: Value, path: KeyPath) -> Iterator[KeyPath]:
    yield path
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Value]", value).items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Value]", value)):
            yield from _paths(inner, (*path, index))


def _unprintable(value: Value) -> Iterator[tuple[str, str]]:
    """What makes a text unfit for a path, a name or a log line, in words, and the remedy."""
    if isinstance(value, str):
        for character in value:
            if unicodedata.category(character) == "Cc":
                yield _of_locale(value) or (f"a control character (U+{ord(character):04X})", "delete it")
            elif unicodedata.category(character) == "Cs":
                yield _of_locale(value) or ("a byte that is not UTF-8", "delete it")
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Value]", value).items():
            yield from _unprintable(key)
            yield from _unprintable(inner)
    elif isinstance(value, list):
        for inner in cast("list[Value]", value):
            yield from _unprintable(inner)


def _of_locale(text: str) -> tuple[str, str] | None:
    """What to say where the locale's encoding made control characters of UTF-8; None where it did not."""
    encoding = sys.getfilesystemencoding()
    try:
        meant = os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return None
    if meant == text:
        return None
    return f"UTF-8, which this locale reads as {encoding}", "export LC_ALL=C.UTF-8, and run the same command again"
