"""Unknown keys: what was probably meant, by spelling, by section, or by the name another tool gives to the key."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from loradock.config.fields import annotation_at, item_of, keys, section_of, takes
from loradock.config.other_tools import EXPLAINED, RENAMED
from loradock.config.strict_yaml import KeyPath

NEAR = 0.7
"""How alike (difflib's ratio) a misspelt key is: most slips of one letter are above 0.8; adapter is to after 0.67."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """An unknown key in words; `meant` is the key that was surely meant, where there is one."""

    what: str
    hint: str
    meant: str | None = None


def unknown_key(path: KeyPath) -> Unknown:
    """Explain the unknown key at `path`, whose parent is a known section."""
    name = str(path[-1])
    what = f"unknown key: {dotted(path)}"
    if annotation_at(tuple(name.split("."))) is not None and "." in name:
        section, _, rest = name.partition(".")
        return Unknown(what=what, hint=f"write {section}: {{{rest}: ...}}; dots are for --set", meant=name)
    plain = name.lower().replace("-", "_")
    if plain in EXPLAINED:
        return Unknown(what=what, hint=EXPLAINED[plain])
    if plain in RENAMED:
        return _did_you_mean(what, [RENAMED[plain]])
    siblings = _siblings(path[:-1])
    everywhere = [key.name for key in keys() if ".N." not in key.name]
    prefix = dotted(path[:-1]) + "." if len(path) > 1 else ""
    found = (
        [key for key in everywhere if key.rpartition(".")[2] == plain]
        or [prefix + near for near in difflib.get_close_matches(plain, siblings, n=1, cutoff=NEAR)]
        or _near_anywhere(plain, everywhere)
    )
    if found:
        return _did_you_mean(what, found)
    return Unknown(what=what, hint=_known(path[:-1], siblings))


def key_called(name: str) -> str | None:
    """The key that is surely meant by a name: a whole key, what another tool calls it, or the end of one key alone."""
    if "." in name:
        return name if annotation_at(tuple(name.split("."))) is not None else None
    ends = [key.name for key in keys() if ".N." not in key.name and key.name.rpartition(".")[2] == name]
    return RENAMED.get(name) or (ends[0] if len(ends) == 1 else None)


def dotted(path: KeyPath) -> str:
    """The key path as a person types it: ("data", "sources", 0) -> "data.sources.0"."""
    return ".".join(str(part) for part in path)


def _did_you_mean(what: str, found: list[str]) -> Unknown:
    meant = found[0] if len(found) == 1 else None
    return Unknown(what=what, hint=f"did you mean {' or '.join(found)}?", meant=meant)


def _near_anywhere(name: str, everywhere: list[str]) -> list[str]:
    by_leaf = {key.rpartition(".")[2]: key for key in everywhere}
    return [by_leaf[near] for near in difflib.get_close_matches(name, list(by_leaf), n=1, cutoff=0.75)]


def _known(parent: KeyPath, siblings: list[str]) -> str:
    annotation = annotation_at(parent)
    if section_of(item_of(annotation)) is not None:
        return f"entries go by their position: {dotted(parent)}.0"
    if annotation is None or siblings:
        return f"known here: {', '.join(siblings or _siblings(()))}"
    return f"{dotted(parent)} takes {takes(annotation)}"


def _siblings(parent: KeyPath) -> list[str]:
    annotation = annotation_at(parent)
    section = section_of(annotation) or section_of(item_of(annotation))
    return list(section.model_fields) if section else []
