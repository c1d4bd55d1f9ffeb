"""`loradock build`: check the machine, build the image on scratch storage, write a record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.status import Status
from rich.table import Table

from loradock.analysis.report.figures import Figures
from loradock.commands.page import fitting_console, folded, say, show
from loradock.commands.paths import LocalPath, OutputFile, PathsAfter
from loradock.delivery.image.build import build as build_image
from loradock.delivery.image.build import preflight
from loradock.delivery.image.engine import connect
from loradock.delivery.image.inputs import VARIANTS, BuildAsk
from loradock.delivery.image.progress import Step
from loradock.delivery.image.scratch import Property, default_scratch
from loradock.delivery.image.space import Room
from loradock.text.amounts import free_text, needed_text, size_text

TITLE_CHARACTERS = 120
"""Of a step's command, in its line; the log has all of it."""
FILE = LocalPath(dir_okay=False)
FOLDER = LocalPath(file_okay=False)


class Screen:
    """The build on stderr: one live line on a terminal, a line a step elsewhere."""

    def __init__(self) -> None:
        self.console = fitting_console(stderr=True)
        self.status: Status | None = None
        self.began = time.monotonic()
        self.shown: dict[tuple[int, str], str] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status = self.console.status("looking at this machine")
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status:
            self.status.stop()

    def note(self, text: str) -> None:
        """One line of text."""
        self.console.print(folded(text, stderr=True), markup=False, soft_wrap=True)

    def changed(self, step: Step) -> None:
        """Show where the build is: a step's end as a line, what it says on the live line."""
        if not step.is_work:
            return
        key = (step.number, step.name)
        title = step.title[:TITLE_CHARACTERS]
        if self.status:
            last_line = step.lines[-1].strip()[:80] if step.lines else ""
            elapsed = int(time.monotonic() - self.began)
            self.status.update(
                f"{elapsed // 60}:{elapsed % 60:02d} {_plain(title[:60])}  [dim]{_plain(last_line)}[/dim]"
            )
        is_silent = step.state == "running" and (self.status or not step.lines)
        if self.shown.get(key) != step.state and not is_silent:
            self.shown[key] = step.state
            took = f" {step.seconds:.1f} s" if step.state == "done" else ""
            self.note(f"{step.state + took:<14}{title}")

    def storage(self, folder: Path, findings: list[Property]) -> None:
        """Say what the scratch's storage cannot be relied on for, and what is done instead."""
        unsafe = [finding for finding in findings if not finding.is_safe]
        self.note(f"scratch: {folder}" + ("" if unsafe else " (locks, rename, exec, ownership, fsync: all work)"))
        for finding in unsafe:
            self.note(f"  unsafe there: {finding.name} ({finding.seen}): {finding.instead}")

    def space(self, rooms: list[Room]) -> None:
        """The table of need and have."""
        table = Table(box=None, pad_edge=False)
        table.add_column("where")
        for title in ("need", "have", "inodes need", "inodes have"):
            table.add_column(title, justify="right")
        for room in rooms:
            have = "no limit" if room.free_files is None else f"{room.free_files:,}"
            mark = "" if room.is_enough else "  too little"
            table.add_row(
                f"{room.mount}{mark}",
                needed_text(room.need_bytes),
                free_text(room.free_bytes),
                f"{room.need_files:,}",
                have,
            )
            for need in room.needs:
                if need.bytes:
                    table.add_row(
                        f"  {need.what} ({need.path})",
                        needed_text(need.bytes),
                        "",
                        f"{need.files:,}",
                        "",
                        style="dim",
                    )
        show(self.console, Figures(table))


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tag", "-t", help="Name of the image. [default: loradock:VERSION, or VERSION-VARIANT]")
@click.option(
    "--variant",
    type=click.Choice(list(VARIANTS)),
    default="standard",
    show_default=True,
    help="deepspeed adds ZeRO-2 and ZeRO-3, and a compiler for DeepSpeed's operations.",
)
@click.option(
    "--scratch", type=FOLDER, help="Folder for wheels, build trees and records. [default: ~/.cache/loradock/build]"
)
@click.option("--context", type=FOLDER, help="Checkout to build from. [default: the one this command runs from]")
@click.option("--base-image", help="Base image instead of the pinned CUDA one, for a site without that registry.")
@click.option("--devel-image", help="Development image instead of the pinned CUDA one (flash-attn only).")
@click.option(
    "--flash-attn",
    type=PathsAfter(":"),
    default="off",
    show_default=True,
    metavar="off|build|wheel:PATH",
    help="Add flash-attn.",
)
@click.option("--flash-attn-archs", default="80;90", show_default=True, help="Compute capabilities to compile for.")
@click.option("--max-jobs", type=click.IntRange(min=1), help="Parallel compile jobs. [default: from memory and CPUs]")
@click.option("--platform", help="As in docker build, for example linux/amd64.")
@click.option("--pip-conf", type=FILE, help="Your pip.conf (a private index); kept out of layers and logs.")
@click.option("--ca", type=FILE, help="CA certificates for downloads; kept out of layers and logs.")
@click.option("--sbom", type=OutputFile(".json"), help="Write the image's bill of materials (CycloneDX) to this file.")
@click.option("--pull", is_flag=True, help="Pull the base image even if it is present.")
@click.option("--push", is_flag=True, help="Push the image after the build.")
@click.option("--no-cache", is_flag=True, help="Build without the layer cache. Wheels on scratch are still used.")
@click.option("--dry-run", is_flag=True, help="Only check disk space, memory and tools.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON on stdout.")
def build(*, scratch: Path | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Build the image: check disk space first, keep wheels on scratch storage, clean up afterwards.

    \b
    loradock build --scratch /mnt/shared/tmp
    """
    ask = BuildAsk(scratch=scratch or default_scratch(), **options)
    with Screen() as screen:
        if dry_run:
            checks = preflight(ask, client=connect(), view=screen)
            if as_json:
                click.echo(json.dumps({"rooms": [room.as_json() for room in checks.rooms]}, indent=2))
            return
        record = build_image(ask, view=screen)
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(f"{record['tag']}  {record['image'].removeprefix('sha256:')[:12]}  {size_text(record['bytes'])}")
    say(
        f"{record['seconds']:.0f} s, {record['cached_steps']} of {len(record['steps'])} steps cached; "
        f"record: {Path(record['log']).with_suffix('.json')}",
        stderr=True,
    )
