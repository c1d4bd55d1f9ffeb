"""`loradock render --check`: what is wrong with manifests, by rule, line and level."""

from __future__ import annotations

import json
from pathlib import Path

import click

from loradock.commands.page import say
from loradock.errors import ConfigError, EnvironmentUnfit, InputMissing, Problem, UsageError
from loradock.files import regular
from loradock.text.suggest import did_you_mean

ASKED_FOR = ("pss-host-path",)
"""Rules that an option of `loradock render` breaks by intent, and warns about."""


def check(files: tuple[Path, ...], *, skipped: tuple[str, ...], is_strict: bool, as_json: bool) -> None:
    """Say what is wrong with manifests, side by side. ConfigError with every error of all of them."""
    from loradock.delivery.kubernetes.check import RULES, problems

    names = {rule.name for rule in RULES}
    if unknown := [name for name in skipped if name not in names]:
        hint = did_you_mean(unknown[0], names, before="--skip ") or "docs/manifest-check.md lists the rules"
        raise UsageError(f"--skip {unknown[0]}: there is no such rule", hint=hint)
    violations = problems({str(file): _text(file) for file in files}, skip=skipped)
    errors = [violation for violation in violations if is_strict or violation.level == "error"]
    if as_json:
        click.echo(json.dumps([vars(violation) for violation in violations], indent=2))
    else:
        for warning in (violation for violation in violations if violation not in errors):
            say(f"warning: {warning}", stderr=True)
    if errors:
        raise ConfigError(f"{len(errors)} problem(s) in {len(files)} file(s)", problems=errors)
    if not as_json:
        for file in files:
            click.echo(f"ok: {file}")


def refusals(text: str) -> list[str]:
    """Raise UsageError where our own check refuses what was rendered; a warning where it cannot be asked."""
    from loradock.delivery.kubernetes.check import problems

    try:
        violations = problems({"": text}, skip=ASKED_FOR)
    except EnvironmentUnfit as error:
        return [f"{error.what}, so what is rendered was not checked ({error.hint})"]
    if wrong := [
        Problem(what=violation.what, hint=violation.hint) for violation in violations if violation.level == "error"
    ]:
        raise UsageError("the manifest from these options would be refused by --check", problems=wrong)
    return []


def _text(file: Path) -> str:
    try:
        return regular.read_text(file)
    except OSError as error:
        raise InputMissing(f"{file} cannot be read: {error.strerror}", hint=f"ls {file.parent}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error.reason}", hint=f"file {file}") from error
