"""Options that other trainers have: what they are called here, by the table of config/suggest.py."""

from __future__ import annotations

import click

from loradock.config.load import SHORTCUTS
from loradock.config.suggest import EXPLAINED, key_called

VALUES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "load_in_4bit": "nf4, which is the default",
    "load_in_8bit": "int8",
    "report_to": "[wandb]",
    "wandb": "[wandb]",
}
"""What the key takes, where the option's name says it."""
OPTIONS_ONLY = {
    "config": "CONFIG is given without an option: loradock train run.yaml",
    "dry_run": "loradock plan, with the same arguments, says what a run would do",
}


def explained(unknown: click.NoSuchOption, command: click.Command) -> click.NoSuchOption:
    """The error with what the option is called here; as it is for a name that nobody else uses either."""
    hint = _hint(unknown.option_name, command)
    if hint is None:
        return unknown
    return click.NoSuchOption(unknown.option_name, f"No such option {unknown.option_name!r}: {hint}", ctx=unknown.ctx)


def _hint(option: str, command: click.Command) -> str | None:
    name = option.lstrip("-").lower().replace("-", "_")
    if text := OPTIONS_ONLY.get(name) or EXPLAINED.get(name):
        return text
    key = key_called(name)
    if key is None:
        return None
    flag = next((flag for flag, short in SHORTCUTS.items() if short == key), None)
    taken = next((each for each in command.params if flag in each.opts and name != key), None)
    return f"{flag} {taken.metavar}" if taken else f"--set {key}={VALUES.get(name, 'VALUE')}"
