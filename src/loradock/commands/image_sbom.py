"""`loradock image sbom`: the bill of materials, CycloneDX 1.6 JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from loradock.commands.paths import OutputFile
from loradock.delivery.image.sbom import bill_of_image, bill_of_materials
from loradock.files import atomic_io
from loradock.files.system_errors import storage_error


@click.command()
@click.argument("image", required=False)
@click.option(
    "-o",
    "--output",
    type=OutputFile(".json"),
    help="Write to this file (atomically) instead of printing.",
)
def sbom(image: str | None, output: Path | None) -> None:
    """List every Python and system package of IMAGE, or of this environment, as CycloneDX 1.6 JSON.

    \b
    loradock image sbom loradock:0.1.0

    The same content gives the same bytes. The command fails if a part cannot be listed.
    """
    if image is None:
        text = bill_of_materials(Path(sys.prefix))
    else:
        from loradock.delivery.image.engine import connect

        text = bill_of_image(connect(), image).rstrip("\n")
    if output is None:
        click.echo(text)
        return
    try:
        atomic_io.replace(output, text + "\n")
    except OSError as error:
        raise storage_error(error, output) from error
