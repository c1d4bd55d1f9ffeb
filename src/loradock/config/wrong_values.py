"""Wrong values: what the schema refuses, said in plain words with what was given and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from loradock.catalog import optimizers
from loradock.catalog.objectives.preference import LOSSES
from loradock.config.fields import accepts, annotation_at, choices, item_of, section_of, takes
from loradock.config.other_tools import preference
from loradock.config.scalars import scalar
from loradock.config.schema import RunConfig
from loradock.config.strict_yaml import KeyPath
from loradock.config.suggest import dotted
from loradock.text.suggest import did_you_mean

SHOWN_CHARACTERS = 60
REMEDIES = {
    "data.validation": "--set data.validation=0.1 holds a tenth of the rows out, 0 none; several files have names of "
    "letters, digits, - and _: {chat: chat.jsonl}",
    "model.trust_remote_code": "to run the model's own code, repeat its model.name here as a text; else delete the key",
}
"""What to type where a key takes a text, and a number or a truth value in quotes would mean nothing."""
LEFT_OUT = {
    ("lora.init", "eva"): "--set lora.init=default; EVA is not built: it sets the ranks of layers from training rows, "
    "and the plan reckons with ranks before a row is read",
    ("lora.init", "loftq"): "--set lora.init=default; LoftQ is not built: PEFT's for NF4 leaves out the scale "
    "alpha / rank, and at 2, the default, brings the base no nearer to its unquantised weights",
    ("train.optimizer", "muon"): f"--set train.optimizer=auto; {optimizers.MUON}",
    ("objective", "sft"): "--set objective=supervised, which is the default",
    ("objective", "rm"): "--set objective=reward",
    **{("objective", loss): f"--set objective=preference --set preference.loss={loss}" for loss in LOSSES},
    **{
        ("preference.loss", theirs): f"--set preference.loss={ours}"
        for theirs, ours in preference.LOSSES.items()
        if theirs not in LOSSES
    },
}
"""Values that other tools have and ours has not: why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class WrongValue:
    """A value that the schema refuses, at `path`."""

    path: KeyPath
    what: str
    hint: str | None


def check(values: Mapping[str, object]) -> RunConfig | list[WrongValue]:
    """The typed configuration, or everything that is wrong with the values.

    Types are strict, as in JSON: no text becomes a number, no number a truth value. Only a float without a fraction
    passes for a whole number (`1e3` steps), and a whole number for a float.
    """
    try:
        return RunConfig.model_validate_json(json.dumps(_whole(values)), strict=True)
    except ValidationError as error:
        found = {_known(detail["loc"], values): detail["type"] for detail in error.errors(include_url=False)}
        return [_explain(path, kind, values) for path, kind in found.items() if not _has_deeper(path, found)]


def shown(value: object) -> str:
    """The value as a short piece of YAML for a message."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return "a mapping"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def _whole(value: object) -> object:
    """The same values with each float that has no fraction as an int, which JSON takes for either."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole(inner) for key, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in cast("list[object]", value)]
    return value


def _known(location: tuple[str | int, ...], values: Mapping[str, object]) -> KeyPath:
    """The longest part of a pydantic location that is a key path: it appends the names of union members."""
    end = len(location)
    while end and not _is_key(location[:end], values):
        end -= 1
    return location[:end]


def _is_key(path: KeyPath, values: Mapping[str, object]) -> bool:
    """Whether the schema knows the path, and what is given could have it: any name may stand in a mapping."""
    if annotation_at(path) is None:
        return False
    if section_of(annotation_at(path[:-1])) is not None or not isinstance(path[-1], str):
        return True
    above = _value_at(path[:-1], values)
    return isinstance(above, dict) and path[-1] in above


def _has_deeper(path: KeyPath, found: Mapping[KeyPath, str]) -> bool:
    return any(len(other) > len(path) and other[: len(path)] == path for other in found)


def _explain(path: KeyPath, kind: str, values: Mapping[str, object]) -> WrongValue:
    key = dotted(path)
    if kind == "missing":
        return WrongValue(path=path, what=f"{key} is missing", hint=f"it takes {takes(annotation_at(path))}")
    value = _value_at(path, values)
    annotation = annotation_at(path)
    what = f"{key} must be {takes(annotation)}, not {shown(value)}"
    hint = LEFT_OUT.get((key, value)) if isinstance(value, str) else REMEDIES.get(key) if value is not None else None
    return WrongValue(path=path, what=what, hint=hint or next(_hints(value, annotation), None))


def _value_at(path: KeyPath, values: Mapping[str, object]) -> object:
    here: Any = values
    for part in path:
        here = here[part]
    return here


def _hints(value: object, annotation: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _text_hints(value, annotation)
    elif value is None:
        yield "leave the key out to take its default"
    elif accepts(annotation, str) and not isinstance(value, dict | list):
        yield "put it in quotes"
    elif isinstance(value, bool) and choices(annotation):
        yield f"write one of them: {', '.join(choices(annotation))}"


def _text_hints(value: str, annotation: Any) -> Iterator[str]:
    if not value and accepts(annotation, type(None)):
        yield "leave it out to take its default"
    if accepts(annotation, bool) and value.lower() in _TRUTHS:
        yield f"write {_TRUTHS[value.lower()]}"
    if question := did_you_mean(value, choices(annotation), alike=0.5):
        yield question
    item = item_of(annotation)
    if item is not None and section_of(item) is None:
        named = "" if value.lower() in _NOTHING else ", ".join(value.replace(",", " ").split())
        yield f"write a list: [{named}]" if named else "write []"
    if isinstance(scalar(value), bool | int | float):
        yield f"write {value} without quotes"
    digits = value.replace("_", "").replace(",", "")
    plain = digits.lstrip("0") or "0"
    if digits.isdecimal() and digits.isascii() and plain != value:
        yield f"write {plain}"


_NOTHING = ("", "no", "none", "off")
_TRUTHS: dict[str, str] = {"yes": "true", "on": "true", "y": "true", "true": "true"} | {
    "no": "false",
    "off": "false",
    "n": "false",
    "false": "false",
}
