"""Options of another trainer, several of them in one command line: answered all at once, with their values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from loradock.commands.option_hints import hint_of
from loradock.config.annotated_yaml import plain
from loradock.config.load import SHORTCUTS
from loradock.config.other_tools import TOOLS, recognised
from loradock.config.other_tools.base import Translation, Value, as_number
from loradock.config.scalars import scalar
from loradock.config.suggest import key_called

SOURCE = "data.sources.0.path"
FLAGS = {key: flag for flag, key in SHORTCUTS.items()} | {SOURCE: "--data"}


def answered(args: Sequence[str], command: click.Command, context: click.Context) -> click.UsageError | None:
    """What to type in the place of options that are none of this command's.

    None for none, and for a single one of which no value is known, or all that there is to say without its value.
    """
    ours, theirs = separated(args, command)
    if not theirs:
        return None
    values = {name.lstrip("-").lower().replace("-", "_"): value for name, value in theirs.items()}
    translation = (recognised(values) or TOOLS["trl"]).translate(values, folder=Path())
    typed = {key: value for key, value in translation.values.items() if _is_given(value, values)}
    typed = {key: value for key, value in typed.items() if not _no_numbers(value, values)}
    typed |= _rows(values, typed)
    if len(theirs) == 1:
        (option,), (given,) = theirs, values.items()
        return _of_one(option, given, translation, typed, command, context)
    lines = [f"No such options: {', '.join(theirs)}"]
    for option, name in zip(theirs, values, strict=True):
        own = [_typed(key, value.value) for key, value in typed.items() if name in value.origin.split(" ")]
        lines.append(f"  {option}: {' '.join(own) or _why(option, name, translation, command, value=values[name])}")
    words = [*(shlex.quote(word) for word in ours), *(_typed(key, value.value) for key, value in typed.items())]
    lines.append(f"All together: {' '.join((context.command_path, *words))}")
    return click.UsageError("\n".join(lines), ctx=context)


def _of_one(
    option: str,
    given: tuple[str, Any],
    translation: Translation,
    typed: Mapping[str, Value],
    command: click.Command,
    context: click.Context,
) -> click.UsageError | None:
    """The same for a single one: its value as ours, or why ours has none, where else only a key would be named."""
    (name, value), hint = given, hint_of(option, command) or ""
    if not hint.endswith("=VALUE"):
        return None
    own = [_typed(key, ours.value) for key, ours in typed.items() if f"--set {key}=VALUE" == hint]
    reason = translation.left.get(name) or ""
    if value is not True and reason.startswith(f"{value}: "):  # it is the value that there is not, and not the key
        own.append(reason)
    return click.UsageError(f"No such option '{option}': {' '.join(own)}", ctx=context) if own else None


def separated(args: Sequence[str], command: click.Command) -> tuple[list[str], dict[str, Any]]:
    """The arguments that the command knows, and the long options that it does not, with their values (True: none).

    A hidden option is there to be refused, and so is one of theirs.
    """
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    known = {name: param for param in options for name in (*param.opts, *param.secondary_opts)}
    ours: list[str] = []
    theirs: dict[str, Any] = {}
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*ours, word, *words], theirs
        if not word.startswith("--") or name in (*known, "--help"):
            ours.append(word)
            if name in known and not equals and words and not (known[name].is_flag or known[name].count):
                ours.append(words.pop(0))
            continue
        texts = [value] if equals else []
        while not equals and words and (not words[0].startswith("-") or as_number(words[0]) is not None):
            texts.append(words.pop(0))
        read = [scalar(text) for text in texts]
        theirs[name] = True if not read else read[0] if len(read) == 1 else read
    return ours, theirs


def _is_given(value: Value, values: Mapping[str, Any]) -> bool:
    return "default" not in value.origin and value.origin.split(" ")[0].partition(".")[0] in values


def _no_numbers(value: Value, values: Mapping[str, Any]) -> list[Any]:
    """What the options that a number comes from were given, where that is none: no value, another text, no end."""
    if type(value.value) not in (int, float):
        return []
    options = [values[name] for name in value.origin.split(" ") if name in values]
    return [text for text in options if not isinstance(text, list) and not _is_number(text)]


def _is_number(value: Any) -> bool:
    number = as_number(value)
    return number is not None and math.isfinite(number)


def _rows(values: Mapping[str, Any], typed: Mapping[str, Value]) -> dict[str, Value]:
    """The source that an option of any tool names, where the tool that these are of has it under another name."""
    if any(key.startswith("data.sources") for key in typed):
        return {}
    sources = [name for name, value in values.items() if key_called(name) == "data.sources" and isinstance(value, str)]
    return {SOURCE: Value(values[sources[0]], sources[0])} if sources else {}


def _typed(key: str, value: Any) -> str:
    if key in FLAGS and isinstance(value, str | int | float):
        return f"{FLAGS[key]} {shlex.quote(str(value))}"
    return f"--set {shlex.quote(f'{key}={plain(value)}')}"


def _why(option: str, name: str, translation: Translation, command: click.Command, *, value: Any) -> str:
    """The reason why it has no counterpart, or what is known of the option alone."""
    if any(_no_numbers(ours, {name: value}) for ours in translation.values.values()):
        return f"it takes a number{'' if value is True else f', not {value}'}"
    if name in translation.refused:
        return f"a training that is not here ({translation.refused[name]})"
    if name in translation.left and name not in translation.tool.rules:
        return hint_of(option, command) or translation.left[name]
    return (
        translation.left.get(name, "").removeprefix("True: ") or "leave it out: it is the default, or nothing needs it"
    )
