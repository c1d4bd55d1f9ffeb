"""The schema as a flat table: what each key takes, in words. Error messages and docs/config.md are made of it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loradock.config.schema import RunConfig
from loradock.config.sections.values import PathBound
from loradock.config.strict_yaml import KeyPath


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the configuration; `name` is dotted, with N for the position in a list."""

    name: str
    takes: str
    default: object
    is_required: bool
    description: str


def keys(section: type[BaseModel] = RunConfig, *, prefix: str = "") -> Iterator[Key]:
    """Every key that holds a value (not the sections themselves), in the schema's order."""
    for name, info in section.model_fields.items():
        annotation = _annotation(info)
        inner = section_of(annotation)
        if inner is not None:
            yield from keys(inner, prefix=f"{prefix}{name}.")
            continue
        default: object = info.get_default(call_default_factory=True) if not info.is_required() else None
        yield Key(
            name=prefix + name,
            takes=takes(annotation),
            default=default,
            is_required=info.is_required(),
            description=info.description or "",
        )
        item = section_of(item_of(annotation))
        if item is not None:
            yield from keys(item, prefix=f"{prefix}{name}.N.")


def annotation_at(path: KeyPath) -> Any | None:
    """The type at a key path of the schema (constraints included), or None where there is no such key."""
    annotation: Any = RunConfig
    for part in path:
        section, item = section_of(annotation), item_of(annotation)
        if section is not None and part in section.model_fields:
            annotation = _annotation(section.model_fields[str(part)])
        elif item is not None and isinstance(part, int):
            annotation = item
        else:
            annotation = named_item_of(annotation)
    return annotation


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class, where the type is one."""
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def item_of(annotation: Any) -> Any | None:
    """The type of a list's items, where the type is a list or may be one."""
    for member in _members(annotation):
        if get_origin(_bare(member)) is tuple:
            return get_args(_bare(member))[0]
    return None


def named_item_of(annotation: Any) -> Any | None:
    """The type of a mapping's values, where the type is a mapping or may be one."""
    for member in _members(annotation):
        if get_origin(_bare(member)) is dict:
            return get_args(_bare(member))[1]
    return None


def path_in(annotation: Any) -> PathBound | None:
    """Where the path begins in a text of that type; None where such a text is none."""
    members = _members(annotation)
    return next((each for member in members for each in _constraints(member) if isinstance(each, PathBound)), None)


def choices(annotation: Any) -> tuple[str, ...]:
    """The words that the type allows by name."""
    literals = (member for member in _members(annotation) if get_origin(_bare(member)) is Literal)
    return tuple(word for member in literals for word in get_args(_bare(member)))


def accepts(annotation: Any, kind: type) -> bool:
    """True where the type (or a member of the union) is `kind` itself."""
    return any(_bare(member) is kind for member in _members(annotation))


def takes(annotation: Any) -> str:
    """The allowed values in words, such as "a whole number of at least 1, or auto"."""
    words = [_member_takes(member) for member in _members(annotation)]
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1]).replace('true or false', 'true, false')}, or {words[-1]}"


def _annotation(info: FieldInfo) -> Any:
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    bare = _bare(annotation)
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (annotation,)


def _constraints(annotation: Any) -> Iterator[object]:
    if get_origin(annotation) is Annotated:
        for extra in get_args(annotation)[1:]:
            yield from extra.metadata if isinstance(extra, FieldInfo) else (extra,)


def _member_takes(annotation: Any) -> str:
    bare = _bare(annotation)
    origin = get_origin(bare)
    if origin is Literal:
        words = [str(word) for word in get_args(bare)]
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is tuple:
        item, *rest = get_args(bare)
        named = choices(item)
        if Ellipsis not in rest:
            return f"a list of {1 + len(rest)} {_PLURALS[_bare(item)]}{_bounds(item)}"
        return f"a list of {', '.join(named)}" if named else f"a list of {_PLURALS.get(_bare(item), 'mappings')}"
    if origin is dict or section_of(bare) is not None:
        return "a mapping"
    if bare is types.NoneType:
        return "null"
    return _SINGULARS[bare] + _bounds(annotation)


def _bounds(annotation: Any) -> str:
    constraints = list(_constraints(annotation))
    match constraints:
        case [Ge(ge=least), Le(le=most)]:
            return f" from {least:,} to {most:,}"
        case _:
            words = [word for each in constraints for word in _bound(each)]
            return f" {' and '.join(words)}" if words else ""


def _bound(constraint: object) -> Iterator[str]:
    match constraint:
        case Ge(ge=bound):
            yield f"of at least {bound:,}"
        case Gt(gt=bound):
            yield f"above {bound:,}"
        case Le(le=bound):
            yield f"at most {bound:,}"
        case Lt(lt=bound):
            yield f"below {bound:,}"
        case PathBound():
            yield "that can be a path"
        case MaxLen(max_length=bound):
            yield f"of at most {bound} characters"
        case MinLen():
            yield "that is not empty"
        case _:
            pass


_SINGULARS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_PLURALS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}
