"""A configuration of another tool, key by key into ours: what the tools' tables are made of.

A tool is a table: their key -> what it comes to here. Values that nobody wrote are the tool's own defaults, where they
decide what is trained. What has no counterpart is told with the reason, unless it is off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from loradock.catalog.objectives import OBJECTIVES
from loradock.config.other_tools.explained import EXPLAINED

OFF = (None, False, "", "no", "none", "None", "off", "false", 0)
ROWS = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".gz", ".zst")


@dataclass(frozen=True)
class Value:
    """A value of ours, and where it is from: their key, or their default."""

    value: Any
    origin: str


@dataclass(kw_only=True)
class Translation:
    """Their values on the way to ours.

    `values`: dotted key of ours -> its value; `left`: their key -> why it has no counterpart; `refused`: their key ->
    the training that it asks for, which is another than any of ours.
    """

    tool: Tool
    given: Mapping[str, Any]
    folder: Path = field(default_factory=Path)
    gpus: int = 1
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    left: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def get(self, *names: str) -> Any:
        """The first of their keys that is given, else the tool's default, else None."""
        for name in names:
            if self.given.get(name) is not None:
                return self.given[name]
        return next((self.tool.defaults[name] for name in names if self.tool.defaults.get(name) is not None), None)

    def put(self, key: str, value: Any, *names: str) -> None:
        """Our key has this value, by the first of their keys that is given."""
        name = next((name for name in names if self.given.get(name) is not None), names[0])
        is_given = self.given.get(name.partition(" ")[0].partition(".")[0]) is not None
        self.values[key] = Value(value, name if is_given else f"{name}, {self.tool.title}'s default")

    def leave(self, name: str, why: str) -> None:
        """Their key has no counterpart."""
        self.left[name] = why


def refuse(translation: Translation, name: str, value: Any) -> None:
    """A kind of training that is not one of ours: supervised training in its place would be another model."""
    translation.refused[name] = f"{name}: {value}"


def of_preferences(translation: Translation) -> None:
    """Rows of preferences are recognised by their own columns, and a first adapter has its rank and layers."""
    values = translation.values
    is_reward = "objective" in values and OBJECTIVES[str(values["objective"].value)].has_head
    if is_reward and "lora.adapter" in values:
        origin = values.pop("lora.adapter").origin
        translation.leave(
            origin, "a reward model begins with a whole model: loradock merge makes one of base and adapter"
        )
    if is_reward or "preference.loss" in values:
        is_judged = not is_reward and values["preference.loss"].value == "kto"
        for key in [name for name in values if SOURCE_FORMAT.fullmatch(name)]:
            if is_judged or values[key].value != PAIRS_BY_NAME:
                source = key.removesuffix(".format")
                for name in [name for name in values if name == key or name.startswith(f"{source}.fields")]:
                    del values[name]
    if "lora.adapter" in values:
        for name in ("lora.rank", "lora.alpha", "lora.targets"):
            values.pop(name, None)


def of_new_tokens(translation: Translation) -> None:
    """Where tokens are added, their rows alone are trained, and neither the embedding nor the head whole."""
    saved = translation.values.get("lora.modules_to_save")
    if saved is None or "tokenizer.add_tokens" not in translation.values:
        return
    remaining = [name for name in saved.value if name.rpartition(".")[2] not in ENDS]
    if remaining != saved.value:
        translation.leave(saved.origin, "tokenizer.add_tokens trains the rows of the new tokens, in place of all rows")
        del translation.values["lora.modules_to_save"]
        if remaining:
            translation.values["lora.modules_to_save"] = replace(saved, value=remaining)


ENDS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")
"""What bases call their embedding and their head."""
PAIRS_BY_NAME = "preference"
"""The format whose columns a file of theirs may name."""
SOURCE_FORMAT = re.compile(r"data\.sources\.\d+\.format")
Rule = Callable[[Translation, str, Any], None]
"""What becomes of one of their keys, its name and its value."""
Finish = Callable[[Translation], None]
"""What several of their keys come to together."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool. `marks`: keys by which a file is known as its own. `rules`: their key -> Rule; `needless`: what needs
    nothing here; `lacking`: what has no counterpart, and why; `finish`: what several keys come to.
    """

    name: str
    title: str
    marks: frozenset[str]
    rules: Mapping[str, Rule]
    finish: tuple[Finish, ...]
    defaults: Mapping[str, Any]
    needless: frozenset[str]
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    flatten: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values

    def translate(self, values: Mapping[str, Any], *, folder: Path, gpus: int = 1) -> Translation:
        """Their values in ours; `folder` is that of the file, `gpus` is what a step of theirs ran on."""
        translation = Translation(tool=self, given=self.flatten(values), folder=folder, gpus=gpus)
        for name in dict.fromkeys((*self.defaults, *translation.given)):
            value = translation.get(name)
            if value is not None and name in self.rules:
                self.rules[name](translation, name, value)
            elif name not in self.needless and not _is_off(value):
                translation.leave(name, self.lacking.get(name) or EXPLAINED.get(name) or "no key here does it")
        for finish in self.finish:
            finish(translation)
        of_preferences(translation)
        of_new_tokens(translation)
        return translation


def to(key: str) -> Rule:
    """As it is, under our key."""
    return lambda translation, name, value: translation.put(key, value, name)


def to_number(key: str, *, above: float | None = None, least: float | None = None) -> Rule:
    """A number, also one in quotes; one that is not `above`, or below `least`, means that it is off: nothing."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        number = as_number(value)
        if number is None:
            translation.leave(name, f"{value} is not a number")
        elif (above is None or number > above) and (least is None or number >= least):
            translation.put(key, number, name)

    return rule


def to_truth(key: str) -> Rule:
    """True or false, also as yes and no."""
    return lambda translation, name, value: translation.put(key, is_on(value), name)


def if_on(key: str, value_of_ours: Any) -> Rule:
    """Where it is on, a value of ours."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        if is_on(value):
            translation.put(key, value_of_ours, name)

    return rule


def unless_on(why: str) -> Rule:
    """On is as it is here; what off asks for has no counterpart."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        if not is_on(value):
            translation.leave(name, f"{value}: {why}")

    return rule


def by_word(
    key: str,
    words: Mapping[str, Any],
    *,
    why: str = "there is none of that kind here",
    lacking: Mapping[str, str] | None = None,
) -> Rule:
    """One of their words as one of ours; None of ours: it is the default. `lacking`: why there is none for a word."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        word = str(value).lower()
        if word not in words:
            translation.leave(name, f"{value}: {(lacking or {}).get(word) or why}")
        elif words[word] is not None:
            translation.put(key, words[word], name)

    return rule


def later(_translation: Translation, _name: str, _value: Any) -> None:
    """A `finish` reads it."""


def words(text: str) -> frozenset[str]:
    """The words of a text, names of keys."""
    return frozenset(text.split())


def is_on(value: Any) -> bool:
    """Whether they would take it for true."""
    return value is True or str(value).lower() in ("true", "yes", "on", "1", "unsloth", "auto")


def as_number(value: Any) -> float | int | None:
    """A number as such or as a text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return None


def as_list(value: Any) -> list[Any]:
    """A list, one value, or texts with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def as_mapping(value: Any) -> dict[str, Any]:
    """A mapping, also as the JSON of a command line; an empty one for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def path_of(name: str) -> str:
    """A place of rows: a path where it looks like one or is there, else a data set of the hub."""
    is_path = name.startswith(("/", ".", "~")) or name.endswith(ROWS) or Path(name).exists() or name.count("/") != 1
    return name if is_path or name.startswith("hub:") else f"hub:{name}"


def put_source(translation: Translation, index: int, origin: str, path: str, **more: Any) -> None:
    """One source; what is empty of `more` is left out."""
    for key, value in {"path": path_of(path), **more}.items():
        if value not in (None, "", {}, ()):
            translation.put(f"data.sources.{index}.{key}", value, origin)


def put_configuration(translation: Translation, index: int, origin: str, path: str, configuration: Any) -> None:
    """The configuration of a data set of a hub; no other source has any."""
    if configuration and path_of(path).startswith("hub:"):
        translation.put(f"data.sources.{index}.configuration", str(configuration), origin)
    elif configuration:
        translation.leave(origin, f"{configuration}: only a data set of a hub has configurations")


HELD_OUT_HUB = "a data set of a hub is held out at a commit: --set data.validation=hub:OWNER/NAME@COMMIT#SPLIT"


def _is_off(value: Any) -> bool:
    return value in OFF if isinstance(value, str | int | float | None) else not value
