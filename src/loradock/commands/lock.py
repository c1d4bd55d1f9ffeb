"""`loradock lock`: what is installed, compared with the lock."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from loradock.commands.page import console_on, say
from loradock.commands.paths import LocalPath
from loradock.errors import EnvironmentUnfit
from loradock.machine.lockfile.findings import installers
from loradock.machine.lockfile.verify import Verified
from loradock.machine.lockfile.verify import verify as verify_environment


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lock() -> None:
    """Compare the installed packages with the lock file."""


@lock.command()
@click.option(
    "--venv",
    type=LocalPath(exists=True, file_okay=False),
    help="Environment to check; nothing in it is run. [default: loradock's own]",
)
@click.option(
    "--lock",
    "lock_file",
    type=LocalPath(exists=True, dir_okay=False),
    help="Lock file to compare with. [default: the image's, or this checkout's]",
)
@click.option(
    "--manifest-digest",
    metavar="SHA256",
    help="Expected digest of the manifest: the image's label, read outside the image.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every finding and what was checked as JSON.")
def verify(venv: Path | None, lock_file: Path | None, manifest_digest: str | None, as_json: bool) -> None:
    """Check every installed package and file: versions, hashes, missing and extra files.

    \b
    loradock lock verify --json

    Exit code 71 if anything differs from the lock file, a package's RECORD or the image's manifest.
    """
    with _progress() as progress:
        verified = verify_environment(
            venv or Path(sys.prefix), lock=lock_file, manifest_sha256=manifest_digest, progress=progress
        )
    if as_json:
        click.echo(json.dumps(asdict(verified), indent=2, ensure_ascii=False))
    else:
        click.echo(_summary(verified))
    for note in verified.notes:
        say(f"note: {note}", stderr=True)
    if verified.findings:
        count = len(verified.findings)
        raise EnvironmentUnfit(
            f"{verified.prefix} is not as locked: {count} finding{'s'[: count > 1]}",
            hint=_remedy(verified),
            problems=[finding.problem for finding in verified.findings],
        )


def _summary(verified: Verified) -> str:
    lines = [
        f"environment {verified.prefix} (Python {verified.python})",
        f"lock        sha256:{verified.lock_sha256}  {verified.lock}",
    ]
    if verified.manifest:
        lines.append(f"manifest    sha256:{verified.manifest_sha256}  {verified.manifest}")
    speed = verified.size_bytes / max(verified.seconds, 1e-3) / 1e9
    lines.append(
        f"{'ok' if not verified.findings else 'checked'}: {verified.packages} packages, {verified.files} files, "
        f"{verified.size_bytes / 1e9:.2f} GB in {verified.seconds:.1f} s ({speed:.2f} GB/s)"
    )
    return "\n".join(lines)


def _remedy(verified: Verified) -> str:
    if verified.manifest:
        return "do not use this container: pull or build the image again (loradock build)"
    install, _ = installers(Path(verified.prefix))
    return f"{install} --require-hashes -r {verified.lock}"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar of the bytes hashed, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console_on(stderr=True), transient=True) as bar:
        task = bar.add_task("hashing", total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)
