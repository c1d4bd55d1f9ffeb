"""`loradock bundle`: image, lock, model, data and a run in one verified file, for a site without a network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loradock.commands.paths import LocalPath
from loradock.delivery.image.bundle.create import Image, gather, lock_here
from loradock.delivery.image.bundle.create import create as write_bundle
from loradock.delivery.image.bundle.load import lay_out, load_image
from loradock.delivery.image.bundle.manifest import DATA, IMAGE, MODEL, PARTS, RUN, Manifest
from loradock.delivery.image.bundle.verify import verify as verify_bundle
from loradock.errors import UsageError
from loradock.machine import Host
from loradock.text.amounts import counted, size_text

if TYPE_CHECKING:
    from docker import DockerClient

FILE = LocalPath()
DEFAULT_NAME = "loradock-bundle.tar"


@click.group("bundle", context_settings={"help_option_names": ["-h", "--help"]})
def bundle() -> None:
    """Move a run to a site without a network: one file, verified by its digest."""


@bundle.command("create")
@click.argument("output", type=FILE)
@click.option("--image", metavar="REF", help="An image of the local container engine.")
@click.option("--model", type=FILE, metavar="DIR", help="The directory of the base model.")
@click.option("--data", type=FILE, multiple=True, metavar="FILE", help="A file or directory of data; may be repeated.")
@click.option("--run", type=FILE, metavar="RUN", help="A run, for loradock reproduce: record, steps, templates.")
@click.option("--rows", "has_rows", is_flag=True, help="With --run: its rows and validation files, too.")
@click.option("--base", "has_base", is_flag=True, help="With --run: its base, and the adapter that it began with, too.")
@click.option("--lock", type=FILE, help="Lock file to include. [default: this installation's]")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest on stdout.")
def create(
    output: Path,
    *,
    image: str | None,
    model: Path | None,
    data: tuple[Path, ...],
    run: Path | None,
    has_rows: bool,
    has_base: bool,
    lock: Path | None,
    as_json: bool,
) -> None:
    """Write the bundle to OUTPUT (a file or a directory) and print its digest.

    \b
    loradock bundle create run.tar --image loradock:0.1.0 --model ./base --data rows.jsonl
    loradock bundle create again.tar --run runs/mine --rows --base

    The same inputs give the same bytes. Hidden files are left out; links are followed.
    """
    target = output / DEFAULT_NAME if output.is_dir() else output
    lock = lock or (lock_here(Host()) if image or model or data or run else None)
    if run is None and (has_rows or has_base):
        raise UsageError("--rows and --base are of a run", hint="--run RUN")
    members: dict[str, Path] = {}
    if run is not None:
        members, base = of_run(run, has_rows=has_rows, has_base=has_base)
        model = model or base
    gathered = partial(gather, model=model, data=data, lock=lock, run=members)
    if image is None:
        manifest = write_bundle(target, gathered(image=None), progress=progress())
    else:
        from loradock.delivery.image.engine import connect

        with closing(connect()) as client:
            manifest = write_bundle(target, gathered(image=saved(client, image)), progress=progress())
    tell(manifest, target, as_json=as_json)


def of_run(run: Path, *, has_rows: bool, has_base: bool) -> tuple[dict[str, Path], Path | None]:
    """The files of a run by their members, and its base where that is asked for."""
    from loradock.analysis.reproduce import artefact
    from loradock.analysis.reproduce.original import opened

    original = opened(run)
    members = artefact.members(original, has_rows=has_rows, has_base=has_base)
    return members, artefact.base_of(original) if has_base else None


def saved(client: DockerClient, reference: str) -> Image:
    """What the engine would save of an image."""
    from loradock.delivery.image.engine import image_named

    image = image_named(client, reference)
    return Image(
        reference=reference,
        id=str(image.id),
        size_bytes=int(image.attrs.get("Size", 0)),
        chunks=lambda: (chunk for chunk in image.save(named=reference)),
    )


@bundle.command("verify")
@click.argument("file", type=FILE)
@click.option("--expect", metavar="DIGEST", help="Fail unless the bundle has this digest (sha256:...).")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest on stdout.")
def verify(file: Path, *, expect: str | None, as_json: bool) -> None:
    """Verify every byte of FILE against the manifest; needs no network and no container engine.

    \b
    loradock bundle verify run.tar

    Exit code 65 if anything differs. Give --expect the digest that `create` printed, to refuse another valid
    bundle.
    """
    tell(verify_bundle(file, expect=_digest(expect), progress=progress()), file, as_json=as_json)


@bundle.command("load")
@click.argument("file", type=FILE)
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="DIR", help="New folder for lock file, model and data."
)
@click.option("--expect", metavar="DIGEST", help="Fail unless the bundle has this digest (sha256:...).")
@click.option("--no-image", "is_without_image", is_flag=True, help="Do not load the image.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest on stdout.")
def load(file: Path, *, output: Path, expect: str | None, is_without_image: bool, as_json: bool) -> None:
    """Verify FILE, unpack its files into a new folder, and load its image.

    \b
    loradock bundle load run.tar
    """
    manifest = lay_out(file, output, expect=_digest(expect), progress=progress())
    if manifest.of_part(IMAGE) and not is_without_image:
        from loradock.delivery.image.engine import connect

        with closing(connect()) as client:
            loaded = load_image(client, file)
        change = "" if loaded == manifest.image_id else f" ({manifest.image_id} where it was saved)"
        click.echo(f"loaded {manifest.image}: {loaded}{change}", err=True)
    tell(manifest, file, as_json=as_json)
    click.echo(command(manifest, output, has_image=bool(manifest.of_part(IMAGE)) and not is_without_image), err=True)


def _digest(expect: str | None) -> str | None:
    if expect and not expect.startswith("sha256:"):
        raise UsageError(
            f"not a digest: {expect!r}", hint="sha256: and 64 digits, as loradock bundle create printed it"
        )
    return expect


def progress() -> Callable[[str, int, int], None]:
    """Tell on stderr how far it came, a line for each ten per cent at most."""
    told = -1

    def tell_it(path: str, done_bytes: int, total_bytes: int) -> None:
        nonlocal told
        tenth = 10 * done_bytes // max(1, total_bytes)
        if tenth > told:
            told = tenth
            click.echo(f"{size_text(done_bytes):>12} of {size_text(total_bytes)}  {path}", err=True)

    return tell_it


def tell(manifest: Manifest, file: Path, *, as_json: bool) -> None:
    """The manifest, or what is in it, and the digest."""
    if as_json:
        click.echo(json.dumps({"digest": manifest.digest, **json.loads(manifest.content)}, indent=2))
        return
    for part in PARTS:
        members = manifest.of_part(part)
        if members:
            size_bytes = sum(member.size_bytes for member in members)
            name = (
                manifest.image
                if part == IMAGE
                else ", ".join(sorted({member.path.split("/")[1] for member in members}))
            )
            click.echo(f"{part:8}{name}: {counted(len(members), 'file')}, {size_text(size_bytes)}")
    click.echo(f"{file}: {manifest.digest}")


def command(manifest: Manifest, folder: Path, *, has_image: bool) -> str:
    """What to type there: in the image, whose working directory is then the folder, or without one."""
    if manifest.of_part(RUN):
        return f"try: loradock reproduce {shlex.quote(str(folder))}"
    names = {part: sorted({member.path.split("/")[1] for member in manifest.of_part(part)}) for part in (MODEL, DATA)}
    start, below = "loradock", f"{folder}/"
    if has_image:
        mounted = f"--user $(id -u):0 -v {shlex.quote(str(folder.absolute()))}:/workspace"
        start, below = f"docker run --rm --gpus all --network none {mounted} {manifest.image}", ""
    model = f" --model {shlex.quote(f'{below}{MODEL}/{names[MODEL][0]}')}" if names[MODEL] else ""
    data = "".join(f" --data {shlex.quote(f'{below}{DATA}/{name}')}" for name in names[DATA])
    return f"try: {start} train{model}{data}"
