"""Unknown keys: what was probably meant, by spelling, by section, or by the name another tool gives to the key."""

from __future__ import annotations

from dataclasses import dataclass

from loradock.config.fields import annotation_at, item_of, keys, section_of, takes
from loradock.config.other_tools.explained import EXPLAINED
from loradock.config.other_tools.renamed import RENAMED
from loradock.config.strict_yaml import KeyPath
from loradock.text.suggest import nearest, sentence

NEAR = 0.7
"""How alike (`text.suggest`) a misspelt key is: most slips of one letter are above 0.8; adapter is to after 0.67."""

SHORTEST = 3
"""Letters of a key's beginning that says which it is."""


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
    joined = dotted(path).lower().replace("-", "_").replace(".", "_")
    if len(path) > 1 and joined in RENAMED:  # eval.steps is what others call eval_steps
        return _did_you_mean(what, [RENAMED[joined]])
    if explained := EXPLAINED.get(joined) or EXPLAINED.get(plain):
        return Unknown(what=what, hint=explained)
    if plain in RENAMED:
        return _did_you_mean(what, [RENAMED[plain]])
    siblings = _siblings(path[:-1])
    everywhere = [key.name for key in keys() if ".N." not in key.name]
    prefix = dotted(path[:-1]) + "." if len(path) > 1 else ""
    same_leaf = [key for key in everywhere if key.rpartition(".")[2] == plain]
    sibling = nearest(plain, siblings, alike=NEAR) or _begun(plain, siblings)
    if candidates := same_leaf or ([prefix + sibling] if sibling else _near_anywhere(plain, everywhere)):
        return _did_you_mean(what, candidates)
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
    return Unknown(what=what, hint=sentence(*found), meant=meant)


def _begun(name: str, siblings: list[str]) -> str | None:
    """The one key that begins with this name, of three letters at least: eval of evaluation."""
    longer = [key for key in siblings if key.startswith(name)]
    return longer[0] if len(name) >= SHORTEST and len(longer) == 1 else None


def _near_anywhere(name: str, everywhere: list[str]) -> list[str]:
    by_leaf = {key.rpartition(".")[2]: key for key in everywhere}
    near = nearest(name, by_leaf, alike=0.75)
    return [by_leaf[near]] if near else []


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
