"""`loradock config import`: a configuration of another tool as one of ours."""

from __future__ import annotations

import json
from pathlib import Path

import click

from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.config.imported import imported
from loradock.config.other_tools import TOOLS
from loradock.files import staged


@click.command("import")
@click.argument("file", type=LocalPath())
@click.option("--from", "tool", type=click.Choice(list(TOOLS)), help="Whose it is; default: as its keys say.")
@click.option(
    "--gpus", type=click.IntRange(min=1), default=1, show_default=True, help="How many a step of theirs ran on."
)
@click.option("overrides", "--set", metavar="KEY=VALUE", multiple=True, help="A key of ours, laid over the result.")
@click.option("-o", "--output", type=LocalPath(), metavar="FILE", help="Write it there; default: standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print it and what was not carried over as JSON.")
def import_(
    file: Path, tool: str | None, gpus: int, overrides: tuple[str, ...], output: Path | None, as_json: bool
) -> None:
    """Write the configuration FILE of axolotl, LLaMA-Factory, ms-swift, TRL or unsloth as one of ours.

    \b
    loradock config import axolotl.yaml -o run.yaml

    Each value has the key that it is from, and what nobody wrote is the tool's own default where that decides what is
    trained. What has no counterpart is reported with the reason. `loradock data compare` holds the rows of the result
    against those that the tool itself prepared.
    """
    if output is not None:
        staged.refuse_existing(output, is_folder=False)
    result = imported(file, tool=tool, gpus=gpus, overrides=overrides)
    for key, why in result.left.items():
        say(f"not carried over: {key}: {why}", stderr=True)
    if as_json:
        content = {"configuration": result.text, "not_carried_over": dict(result.left)}
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    elif output is None:
        click.echo(result.text, nl=False)
    if output is not None:
        with staged.file(output) as place:
            place.write_text(result.text, encoding="utf-8")
        say(f"wrote {output}: loradock plan {output}", stderr=True)
