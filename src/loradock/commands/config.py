"""`loradock config`: show a resolved configuration, validate it, list the presets, or print the schema."""

from __future__ import annotations

import json

import click

from loradock.commands.run_options import Ask, RunCommand, run_options
from loradock.config.annotated_yaml import annotated_yaml
from loradock.config.load import Loaded, preset_names, preset_text
from loradock.config.reference import json_schema, markdown


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Show, validate or describe a run's configuration."""


@config.command(cls=RunCommand)
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print the configuration, its origins and the warnings as JSON.")
def show(ask: Ask, as_json: bool) -> None:
    """Print the resolved configuration and where each value came from."""
    loaded = ask.load(needs_inputs=False)
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
def validate(ask: Ask) -> None:
    """Check a configuration; report all its problems, with their lines."""
    from loradock.data.sources import check_fields

    loaded = ask.load()
    check_fields(loaded.config.data.sources)
    _warn(loaded)
    click.echo(f"ok: {ask.config or 'the configuration'}")


@config.command()
def presets() -> None:
    """List the shipped configurations and what each is for."""
    for name in preset_names():
        click.echo(f"{name:<22}{preset_text(name).splitlines()[0].lstrip('# ')}")


@config.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the text of docs/config.md instead.")
def schema(as_markdown: bool) -> None:
    """Print the JSON Schema (draft 2020-12), for editors."""
    if as_markdown:
        click.echo(markdown(), nl=False)
    else:
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
