"""Loading a configuration: defaults < preset < YAML file < short forms < `--set`, with the origin of every value.

Everything that is wrong, wherever it was written, is told in one ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from loradock.catalog.objectives import DEFAULT, OBJECTIVES
from loradock.config import no_effect, other_tools, rules
from loradock.config.fields import annotation_at, item_of
from loradock.config.layers import Layers, Origin, Places
from loradock.config.places import expanded
from loradock.config.presets import read_preset
from loradock.config.schema import RunConfig
from loradock.config.sections.data import parts_of
from loradock.config.strict_yaml import Document, KeyPath, parse_document, parse_value, read_document
from loradock.config.suggest import dotted
from loradock.config.wrong_values import WrongValue, check
from loradock.errors import ConfigError, Problem

SHORTCUTS = {
    "--model": "model.name",
    "--data": "data.sources",
    "--output": "output",
    "--epochs": "train.epochs",
    "--max-steps": "train.max_steps",
    "--batch-size": "train.global_batch",
    "--lr": "train.learning_rate",
    "--rank": "lora.rank",
    "--alpha": "lora.alpha",
    "--max-length": "data.max_length",
    "--seed": "train.seed",
    "--eval-steps": "evaluation.every",
    "--save-steps": "checkpoints.every",
}


Pin = Callable[[rules.HubId, RunConfig], str | rules.KeyProblem]
AdapterKeys = Callable[[str], Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A configuration; `origins` says of each dotted key "default", "preset NAME", "FILE:LINE", "--set" or "--lr"."""

    config: RunConfig
    origins: dict[str, str]
    warnings: tuple[str, ...]


def load(
    path: Path | None,
    *,
    text: str | None = None,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    shortcuts: Mapping[str, object] | None = None,
    needs_inputs: bool = True,
    expand: Callable[[str], str] = expanded,
    pin: Pin | None = None,
    adapter_keys: AdapterKeys | None = None,
) -> Loaded:
    """Merge all layers and check the result. `text` is the file's, where it stands elsewhere: then `path` names it.

    `overrides` are `KEY=VALUE` texts; `shortcuts` maps the flags of SHORTCUTS to their values (None: not given; --data
    takes a list of paths). `expand` is done to each path. Without `needs_inputs`, a model and data may be missing, as
    in a preset that is only shown. `pin` tells the commit of a hub id that was named without one, where nothing else
    is wrong; without it such an id is a problem. `adapter_keys` gives what the adapter in `lora.adapter` decides.
    Raises ConfigError with every problem, or InputMissing where the file cannot be read.
    """
    layers = Layers(expand=expand)
    if preset is not None:
        _put_document(layers, read_preset(preset), label=f"preset {preset}", is_choice=False)
    if path is not None:
        document = read_document(path) if text is None else parse_document(text, file=str(path))
        if tool := other_tools.whose(document.values, ours=RunConfig.model_fields):
            what = f"{path} is a configuration of {tool.title}, not one of loradock"
            raise ConfigError(what, hint=f"loradock config import {path} -o run.yaml")
        _put_document(layers, document, label=str(path), is_choice=True)
    _put_shortcuts(layers, shortcuts or {})
    for override in overrides:
        _put_override(layers, override)
    _put_defaults(layers)
    _put_adapter_keys(layers, adapter_keys)
    config = _checked(layers, needs_inputs=needs_inputs)
    pinned = list(_pinned(layers, config, pin))
    if layers.problems:
        raise _error(layers.problems, path)
    if pinned:
        config = _checked(layers, needs_inputs=needs_inputs)
    origins = {key: _label(layers, key) for key in leaves(config)} | dict(_of_parts(layers))
    warnings = (*_overruled(overrides, shortcuts or {}), *_warnings(layers, config), *pinned)
    return Loaded(config=config, origins=origins, warnings=warnings)


def _pinned(layers: Layers, config: RunConfig, pin: Pin | None) -> Iterator[str]:
    """Put the commit of each hub id that has none, with a line for people; else note what is wrong."""
    is_sound = not layers.problems
    for hub_id in rules.hub_ids(config):
        if hub_id.commit or _is_unsettled(layers, hub_id.key) or (pin and not is_sound):
            continue
        commit = pin(hub_id, config) if pin else hub_id.problem
        if isinstance(commit, str):
            layers.put(key_path(hub_id.key), commit, places=_always(Origin(label="as resolved")))
            yield f"{hub_id.name} is named without a commit: --set {hub_id.key}={commit} is taken, and keeps it there"
        else:
            layers.problems.append(_problem(layers, commit))


def leaves(config: RunConfig | dict[str, Any]) -> dict[str, Any]:
    """Each dotted key with its value; a list of plain values is one leaf, a list of sections has leaves below it."""
    return dict(_leaves(config, ()))


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict) and value:
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for index, inner in enumerate(cast("tuple[Any, ...]", value)):
            yield from _leaves(inner, (*path, index))
    else:
        yield dotted(path), value


def _put_document(layers: Layers, document: Document, *, label: str, is_choice: bool) -> None:
    def places(path: KeyPath) -> Origin:
        known = path
        while known and known not in document.marks:
            known = known[:-1]
        line = document.marks[known].line if known else None
        shown = f"{label}:{line}" if is_choice and line else label
        return Origin(label=shown, file=label, line=line, is_choice=is_choice)

    layers.problems += document.problems
    for key, value in document.values.items():
        layers.put((key,), value, places=places)


def _put_defaults(layers: Layers) -> None:
    """Lay the defaults of the objective below all that was set."""
    spec = OBJECTIVES.get(str(layers.values.get("objective", DEFAULT)))
    defaults: Mapping[str, object] = spec.defaults if spec else {}
    for key, value in defaults.items():
        if layers.origin_of(key) is None and not _is_unsettled(layers, key):
            layers.put(key_path(key), value, places=_always(Origin(label="default", is_choice=False)))


def _put_adapter_keys(layers: Layers, adapter_keys: AdapterKeys | None) -> None:
    """Lay what an adapter to begin with decides; another value that somebody chose is a problem."""
    lora = layers.values.get("lora")
    given = cast("dict[str, object]", lora).get("adapter") if isinstance(lora, dict) else None
    if adapter_keys is None or not isinstance(given, str) or not given or _is_unsettled(layers, "lora.adapter"):
        return
    for key, value in adapter_keys(given).items():
        section, _, name = key.partition(".")
        origin, values = layers.origin_of(key), layers.values.get(section)
        chosen = cast("dict[str, object]", values).get(name) if isinstance(values, dict) else None
        is_ordered = section == "tokenizer"  # rows belong to tokens by their order
        is_same = chosen == value if is_ordered else _as_set(chosen) == _as_set(value)
        if origin is not None and origin.is_choice and not is_same:
            what = f"{key} {chosen}: the adapter in lora.adapter has {value}, and the run continues it"
            layers.refuse(key_path(key), origin, what, hint=f"leave out {key}")
        elif origin is None or not origin.is_choice:
            layers.put(key_path(key), value, places=_always(Origin(label="lora.adapter", is_choice=False)))


def _as_set(value: object) -> object:
    """Names in whatever order."""
    return sorted(map(str, cast("list[object]", value))) if isinstance(value, list | tuple) else value


def _put_override(layers: Layers, override: str) -> None:
    key, equals, text = override.partition("=")
    origin = Origin(label="--set")
    if not equals or not key.strip():
        problem = origin.problem(f'"{override}" is not KEY=VALUE', hint="such as --set train.learning_rate=1e-4")
        layers.problems.append(problem)
        return
    try:
        value = parse_value(text.strip(), file=f"--set {key}")
    except ConfigError as error:
        layers.problems += [Problem(what=each.what, file=each.file, hint=each.hint) for each in error.problems]
        layers.unsettled.add(key.strip())
        return
    layers.put(key_path(key.strip()), value, places=_always(origin))


def _put_shortcuts(layers: Layers, shortcuts: Mapping[str, object]) -> None:
    """Lay the short forms over the files; `--set` comes after them, so that it can refine what --data names."""
    for flag, key in SHORTCUTS.items():
        value = shortcuts.get(flag)
        if value is None:
            continue
        value = [str(item) for item in cast("Sequence[object]", value)] if flag == "--data" else value
        layers.put(key_path(key), str(value) if isinstance(value, Path) else value, places=_always(Origin(label=flag)))


def _overruled(overrides: Sequence[str], shortcuts: Mapping[str, object]) -> list[str]:
    """A warning for each short form whose key a --set gives too."""
    given = {override.partition("=")[0].strip() for override in overrides}
    return [
        f"{flag} has no effect: --set {key} decides"
        for flag, key in SHORTCUTS.items()
        if shortcuts.get(flag) is not None and key in given
    ]


def _always(origin: Origin) -> Places:
    return lambda _path: origin


def key_path(key: str) -> KeyPath:
    """The key path of a dotted key; digits are a position where the schema has a list."""
    path: KeyPath = ()
    for part in key.split("."):
        is_position = part.isdecimal() and item_of(annotation_at(path)) is not None
        path = (*path, int(part) if is_position else part)
    return path


def _checked(layers: Layers, *, needs_inputs: bool) -> RunConfig:
    """The typed configuration; what is wrong is noted and left at its default, so that the rules can still run."""
    config = check(layers.values)
    while not isinstance(config, RunConfig):
        for wrong in config:
            _note(layers, wrong)
            _take_out(layers.values, wrong.path)
        config = check(layers.values)
    checks = (*rules.INPUTS, *rules.RULES) if needs_inputs else rules.RULES
    for rule in checks:
        for finding in rule(config):
            if not any(_is_unsettled(layers, key) for key in finding.keys):
                layers.problems.append(_problem(layers, finding))
    return config


def _note(layers: Layers, wrong: WrongValue) -> None:
    origin = layers.origin_of(dotted(wrong.path)) or Origin(label="default")
    layers.refuse(wrong.path, origin, wrong.what, hint=wrong.hint)


def _take_out(values: dict[str, object], path: KeyPath) -> None:
    """Take the value at `path` out; in a list of sections the whole list, since its entries need one another."""
    path = path[: next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))]
    here: Any = values
    for part in path[:-1]:
        here = here[part]
    here.pop(path[-1])


def _is_unsettled(layers: Layers, key: str) -> bool:
    return any(f"{key}.".startswith(f"{old}.") or f"{old}.".startswith(f"{key}.") for old in layers.unsettled)


def _problem(layers: Layers, finding: rules.KeyProblem) -> Problem:
    origins = [origin for key in finding.keys if (origin := layers.origin_of(key)) is not None]
    if not origins:
        return Problem(what=finding.what, hint=finding.hint)
    return origins[0].problem(finding.what, hint=finding.hint)


def _warnings(layers: Layers, config: RunConfig) -> Iterator[str]:
    for warning in no_effect.WARNINGS:
        for finding in warning(config):
            origin = layers.origins.get(finding.keys[0])
            if origin is not None and origin.is_choice:
                yield f"{origin.label}: {finding.what}"


def _label(layers: Layers, key: str) -> str:
    origin = layers.origins.get(key)
    return origin.label if origin else "default"


def _of_parts(layers: Layers) -> Iterator[tuple[str, str]]:
    """The keys that the path of a source names, each from where the path is from."""
    written: Any = layers.values.get("data") or {}
    for index, entry in enumerate(written.get("sources") or ()):
        for key in (f"data.sources.{index}.{name}" for name in parts_of(entry["path"])):
            if key not in layers.origins:
                yield key, _label(layers, f"data.sources.{index}.path")


def _error(problems: Sequence[Problem], path: Path | None) -> ConfigError:
    file = str(path) if path else None
    ordered = sorted(problems, key=lambda problem: (problem.file is None, problem.file != file, problem.line or 0))
    count = "a problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return ConfigError(f"the configuration has {count}", problems=ordered)
