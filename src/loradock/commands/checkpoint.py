"""`loradock checkpoint`: what a run has committed (`list`), whether it is still so (`verify`), and its adapter."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from loradock.commands.checkpoint_export import export
from loradock.commands.paths import LocalPath
from loradock.commands.verbs import verb_group
from loradock.errors import InputMissing, NoCheckpoint, Problem
from loradock.text.amounts import size_text
from loradock.training.checkpoint import store
from loradock.training.checkpoint.store import Found
from loradock.training.run_dir.paths import CHECKPOINTS, RECORD
from loradock.training.run_dir.resume import read

RUN = click.argument("directory", metavar="DIR", type=LocalPath(exists=True, file_okay=False))
JSON = click.option("--json", "as_json", is_flag=True, help="Print every checkpoint and what is wrong with it as JSON.")


@verb_group(
    "checkpoint",
    {
        "ls show status info": "loradock checkpoint list",
        "check validate": "loradock checkpoint verify",
        "save convert extract adapter": "loradock checkpoint export",
        "merge": "loradock merge RUN OUT --checkpoint STEP",
        "resume continue load": "loradock train --resume --output RUN",
        "delete remove rm clean prune gc": "loradock prune",
    },
)
def checkpoint() -> None:
    """The checkpoints of a run. Read-only; may be used while the run is training."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The checkpoints of a run, newest first, and the names of those that were set aside."""

    directory: Path
    found: list[Found]
    set_aside: list[str]

    @property
    def newest_good(self) -> int | None:
        """The step that the run would continue from."""
        return next((entry.step for entry in self.found if entry.problem is None), None)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        keys = ("step", "size_bytes", "time", "run_id", "problem")
        rows = [
            {
                **{key: getattr(entry, key) for key in keys},
                "path": str(entry.path),
                "is_newest": entry is self.found[0],
                "is_continued_from": entry.step == self.newest_good,
            }
            for entry in self.found
        ]
        return {"directory": str(self.directory), "checkpoints": rows, "set_aside": self.set_aside}

    def as_text(self) -> str:
        """For people: one line each, oldest first, so that the newest stands last."""
        if not self.found:
            return f"{self.directory} has no checkpoint yet"
        rows = [("step", "size", "committed (UTC)", "state")]
        for entry in self.found[::-1]:
            state = entry.problem or "ok"
            state += ", the run continues from it" if entry.step == self.newest_good else ""
            rows.append(
                (str(entry.step), size_text(entry.size_bytes), (entry.time or "-")[:19].replace("T", " "), state)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{s:>{widths[0]}}  {b:>{widths[1]}}  {t:<{widths[2]}}  {state}" for s, b, t, state in rows]
        return "\n".join([*lines, *(f"set aside: {name}" for name in self.set_aside)])


@checkpoint.command(name="list")
@RUN
@JSON
def list_(directory: Path, as_json: bool) -> None:
    """List the checkpoints of the run in DIR, looking at their manifests and sizes only.

    \b
    loradock checkpoint list runs/a-001
    """
    _show(_looked_at(directory, is_hashed=False), as_json=as_json)


@checkpoint.command()
@RUN
@JSON
def verify(directory: Path, as_json: bool) -> None:
    """Hash every file of every checkpoint in DIR. Exit code 83 if the newest one is damaged.

    \b
    loradock checkpoint verify runs/a-001 --json
    """
    listing = _looked_at(directory, is_hashed=True)
    _show(listing, as_json=as_json)
    if not listing.found:
        raise NoCheckpoint(
            f"the run in {directory} has no checkpoint", hint=f"loradock train --resume --output {directory}"
        )
    if listing.found[0].problem is not None:
        step = listing.newest_good
        sentence = "no checkpoint is good" if step is None else f"checkpoint-{step} is the newest good one"
        continues = f"loradock train --resume --output {directory} sets it aside and continues from step {step}"
        raise NoCheckpoint(
            f"the newest checkpoint in {directory} is damaged; {sentence}",
            hint=continues
            if step is not None
            else f"loradock train --fresh --output {directory} starts a new run beside it",
            problems=[Problem(what=entry.problem, file=str(entry.path)) for entry in listing.found if entry.problem],
        )


def _looked_at(directory: Path, *, is_hashed: bool) -> Listing:
    """The checkpoints of the run in a directory; one of another run counts as damaged. InputMissing where no run is."""
    folder = directory / CHECKPOINTS
    has_record = (directory / RECORD).exists()
    if not has_record and not folder.is_dir():
        raise InputMissing(f"there is no run in {directory}", hint="name the directory that holds run.json")
    run_id = read(directory).get("run_id") if has_record else None
    checkpoints = [
        replace(entry, problem=f"it belongs to another run: {entry.run_id}")
        if run_id and entry.problem is None and entry.run_id != run_id
        else entry
        for entry in store.found(folder, is_hashed=is_hashed)
    ]
    return Listing(directory=directory, found=checkpoints, set_aside=[path.name for path in store.aside(folder)])


def _show(listing: Listing, *, as_json: bool) -> None:
    click.echo(json.dumps(listing.as_dict(), indent=2) if as_json else listing.as_text())


checkpoint.add_command(export)
