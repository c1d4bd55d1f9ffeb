"""`loradock image`: what an image holds (`sbom`), and that it holds just that (`verify`)."""

from __future__ import annotations

import click

from loradock.commands.image_sbom import sbom
from loradock.commands.image_verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def image() -> None:
    """An image's bill of materials, content digest and signature."""


image.add_command(sbom)
image.add_command(verify)
