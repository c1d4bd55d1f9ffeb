"""Settings typed without an option, `lr=3` or `model=DIR`, as others take them: what to type here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

from loradock.commands.option_hints import hint_of
from loradock.config.fields import annotation_at
from loradock.config.layers import Layers, Origin
from loradock.config.load import SHORTCUTS, key_path
from loradock.config.strict_yaml import parse_value
from loradock.config.suggest import key_called, unknown_key
from loradock.config.wrong_values import check
from loradock.errors import ConfigError

SETTING = re.compile(r"[A-Za-z_][\w.]*=")
FLAGS = {key: flag for flag, key in SHORTCUTS.items()}
SOURCES = "data.sources"
TEXTS = ("model.name", SOURCES, "output")
"""Keys whose short form takes its value as it is typed."""


def answer(settings: Sequence[str], command: click.Command) -> str:
    """The options to type in the place of all of them; of one that none can be named for, why."""
    options = {setting: option for setting in settings if (option := _typed(setting, command))}
    answers = [f"{setting}: {_why(setting, command)}" for setting in settings if setting not in options]
    if options:
        answers.append(f"{' '.join(options)}: settings are options here: {' '.join(options.values())}")
    return "; ".join(answers)


def _typed(setting: str, command: click.Command) -> str | None:
    """KEY=VALUE as an option; None where no key is surely meant, or it does not take the value."""
    name, _, value = setting.partition("=")
    key = _key(name)
    if key is None or _wrong(key, value):
        return None
    if key != name and _is_short(key, value, command):
        return f"{FLAGS[key]} {shlex.quote(value)}"
    return f"--set {shlex.quote(f'{key}={value}')}"


def _is_short(key: str, value: str, command: click.Command) -> bool:
    """Whether a short form of the key takes the value; not each takes all that its key does, as `auto`."""
    flag = FLAGS.get(key)
    option = next((param for param in command.params if flag in param.opts), None)
    if option is None or key in TEXTS:
        return option is not None
    try:
        option.type.convert(value, option, None)
    except click.BadParameter:
        return False
    return True


def _key(name: str) -> str | None:
    """The key that a name means: a short form, a key, or what others call the last part of it."""
    flag = f"--{name.replace('_', '-')}"
    if flag in SHORTCUTS:
        return SHORTCUTS[flag]
    if annotation_at(key_path(name)) is not None:
        return name
    last = name.rpartition(".")[2]
    return SHORTCUTS.get(f"--{last.replace('_', '-')}") or key_called(last)


def _wrong(key: str, value: str) -> str | None:
    """Why the schema does not take the value there; what else it needs the rest of the command line may say."""
    path = key_path(key)
    if any(isinstance(part, int) for part in path):
        return None  # it refines what --data names
    layers = Layers(expand=str)
    try:
        parsed = value if key in TEXTS else parse_value(value, file=key)
    except ConfigError as error:
        return error.problems[0].what
    layers.put(path, [parsed] if key == SOURCES else parsed, places=lambda _path: Origin(label="--set"))
    if layers.problems:
        return layers.problems[0].what
    found = check(layers.values)
    wrong = found if isinstance(found, list) else []
    return next((each.what for each in wrong if each.path[: len(path)] == path), None)


def _why(setting: str, command: click.Command) -> str:
    """What is known of a setting that no option can be named for."""
    name, _, value = setting.partition("=")
    key, last = _key(name), name.rpartition(".")[2]
    hint = hint_of(last, command) if last != key else None
    wrong = _wrong(key, value) if key else None
    if wrong or hint:
        return "; ".join(filter(None, (wrong, hint)))
    unknown = unknown_key(key_path(name))
    return f"{unknown.what}; {unknown.hint}"
