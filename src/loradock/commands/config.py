"""`loradock config`: show a resolved configuration, validate or import one, list the presets, or print the schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from loradock.commands.config_import import import_
from loradock.commands.page import say
from loradock.commands.run_options import Ask, RunCommand, failures, looks, raise_together, run_options
from loradock.commands.verbs import verb_group
from loradock.config.annotated_yaml import annotated_yaml
from loradock.config.load import Loaded
from loradock.config.places import is_remote
from loradock.config.presets import preset_names, preset_text
from loradock.config.reference import json_schema, markdown
from loradock.config.rules import is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX
from loradock.errors import EnvironmentUnfit, InputMissing, LoradockError


@verb_group(
    "config",
    {
        "init new create template examples list": "loradock config presets",
        "print get dump view cat resolve": "loradock config show",
        "check lint verify test": "loradock config validate",
        "convert migrate translate from": "loradock config import",
        "docs keys reference help": "loradock config schema --markdown",
    },
)
def config() -> None:
    """Show, validate or describe a run's configuration."""


@config.command(cls=RunCommand)
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print the configuration, its origins and the warnings as JSON.")
def show(ask: Ask, as_json: bool) -> None:
    """Print the resolved configuration and where each value came from.

    \b
    loradock config show run.yaml --set lora.rank=32
    """
    loaded = ask.load(needs_inputs=False, reads_rows=False)
    if as_json:
        content = {
            "config": loaded.config.model_dump(mode="json"),
            "origins": loaded.origins,
            "warnings": loaded.warnings,
        }
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        click.echo(annotated_yaml(loaded), nl=False)
    _warn(loaded)


@config.command(cls=RunCommand)
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print whether it is valid, its problems and the rest as JSON.")
def validate(ask: Ask, as_json: bool) -> None:
    """Check a configuration; report all its problems, with their lines.

    \b
    loradock config validate run.yaml
    loradock config validate run.yaml --json

    What is not on this machine (model, data, template, tasks, tracker) is a warning: it may be where the run will be.
    No hub and no server is asked.
    """
    from loradock.use.after import check

    try:
        loaded = ask.load(reads_rows=False)
        errors = failures((*looks(loaded.config), functools.partial(check, loaded.config)))
        absent = [error for error in errors if isinstance(error, InputMissing | EnvironmentUnfit)]
        raise_together([error for error in errors if error not in absent])
    except LoradockError as error:
        if as_json:
            problems = [asdict(problem) for problem in error.problems] or [{"what": error.what, "hint": error.hint}]
            click.echo(json.dumps({"valid": False, "problems": problems}, indent=2, ensure_ascii=False))
        raise
    _warn(loaded)
    for error in absent:
        say(f"warning: on this machine: {error.what}", stderr=True)
    unasked = [*_hub_names(loaded.config)]
    if as_json:
        content = {
            "valid": True,
            "problems": [],
            "warnings": loaded.warnings,
            "not_on_this_machine": [error.what for error in absent],
            "not_looked_for": unasked,
        }
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    names = ", ".join(unasked)
    notes = [f"{len(absent)} of its inputs not found on this machine"] if absent else []
    notes += [f"{names} not looked for on the network"] if names else []
    say("; ".join((f"ok: {ask.config or 'the configuration'}", *notes)))


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON: what each is for, by its name.")
def presets(as_json: bool) -> None:
    """List the shipped configurations and what each is for.

    \b
    loradock config presets
    loradock train --preset commonsense-adapters --model DIR --data rows.jsonl
    """
    purposes = {name: preset_text(name).splitlines()[0].lstrip("# ") for name in preset_names()}
    if as_json:
        click.echo(json.dumps(purposes, indent=2, ensure_ascii=False))
        return
    for name, purpose in purposes.items():
        click.echo(f"{name:<22}{purpose}")


@config.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the text of docs/config.md instead.")
def schema(as_markdown: bool) -> None:
    """Print the JSON Schema (draft 2020-12), for editors.

    \b
    loradock config schema > loradock.schema.json
    """
    if as_markdown:
        click.echo(markdown(), nl=False)
    else:
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


config.add_command(import_)


def _hub_names(config: RunConfig) -> Iterator[str]:
    if is_hub_model(config.model.name):
        yield config.model.name
    paths = (*(source.path for source in config.data.sources), *config.data.validation_files.values())
    yield from (path for path in paths if path.startswith(HUB_PREFIX) or is_remote(path))


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}", stderr=True)
