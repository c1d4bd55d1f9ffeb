"""The checkpoints of a run: committed in one step, kept by step, and found again with the newest good one first.

A commit is staged beside its place (`.stage-ID`), flushed file by file and renamed, so that a visible `checkpoint-STEP`
is always whole. One that leaves is first renamed to `.trash-ID`; one that is damaged, or in the way, to
`checkpoint-STEP.set-aside-N`. Nothing is ever written into a visible one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loradock.errors import LoradockError, NoCheckpoint, Problem
from loradock.files import atomic_io
from loradock.files.system_errors import storage_error
from loradock.training.checkpoint import manifest as manifests
from loradock.training.checkpoint.manifest import (
    MANIFEST,
    NAME,
    SET_ASIDE,
    Checkpoint,
    DamagedCheckpoint,
    open_checkpoint,
)

STAGE, TRASH = ".stage-", ".trash-"
Files = Mapping[str, atomic_io.Content]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies at one `checkpoint-STEP`. `problem` is None where it is good; run and time as far as they are known."""

    path: Path
    step: int
    problem: str | None
    size_bytes: int
    time: str | None
    run_id: str | None


class Checkpoints:
    """Commits the checkpoints of one run into one folder, and keeps the newest `keep` of them (1 at least).

    `fence` is called when all is written and nothing is visible yet; it raises where another run took over.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        fingerprint: Mapping[str, str],
        keep: int,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.run_id = run_id
        self.fingerprint = dict(fingerprint)
        self.keep = max(1, keep)
        self.fence = fence

    def commit(
        self,
        step: int,
        *,
        files: Files,
        progress: Mapping[str, Any],
        keep_besides: Collection[int] = (),
    ) -> Path:
        """Make `files` and `progress` the checkpoint of this step, remove the old ones, and return its folder.

        `keep_besides` are steps that stay whatever their age. Raises DiskFull, NotWritable or StorageError, or what
        `fence` raises; then nothing of it is left, and the checkpoints before it are as they were.
        """
        target, stage = self.folder / f"checkpoint-{step}", self.folder / f"{STAGE}{uuid.uuid4().hex}"
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(exist_ok=True)
                atomic_io.sync_folder(self.folder.parent)
            stage.mkdir()
            self._fill(stage, step=step, files=files, progress=progress)
            self.fence()
            if os.path.lexists(target):
                set_aside(target)
            stage.rename(target)
            atomic_io.sync_folder(self.folder)
        except BaseException as error:
            shutil.rmtree(stage, ignore_errors=True)  # the error that led here counts more than one from tidying up
            if isinstance(error, OSError):
                raise storage_error(error, target) from error
            raise
        self._rotate({step, *keep_besides})
        return target

    def _fill(self, stage: Path, *, step: int, files: Files, progress: Mapping[str, Any]) -> None:
        if wrong := [name for name in files if name == MANIFEST or name in ("", ".", "..") or "/" in name]:
            raise ValueError(f"no name for a file of a checkpoint: {wrong[0]!r}")
        written = {name: atomic_io.write(stage / name, content) for name, content in files.items()}
        content = {
            "format": manifests.FORMAT,
            "run_id": self.run_id,
            "step": step,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "fingerprint": self.fingerprint,
            "progress": dict(progress),
            "files": {name: {"sha256": each.sha256, "bytes": each.size_bytes} for name, each in written.items()},
        }
        atomic_io.write(stage / MANIFEST, manifests.text(content))
        atomic_io.sync_folder(stage)

    def _rotate(self, kept_steps: Collection[int]) -> None:
        """Take the old ones out of sight in one step each, make that durable, and only then remove their files."""
        old = [path for step, path in visible(self.folder)[self.keep :] if step not in kept_steps]
        try:
            trash = [path.rename(self.folder / f"{TRASH}{uuid.uuid4().hex}") for path in old]
            if trash:
                atomic_io.sync_folder(self.folder)
        except OSError as error:
            raise storage_error(error, self.folder) from error
        self.clear_trash()

    def clear_trash(self) -> None:
        """Remove the files of what left; what a reader still holds open is tried again by the next call, or sweep."""
        with contextlib.suppress(OSError):
            _cleared(self.folder, (TRASH,))


def visible(folder: Path) -> list[tuple[int, Path]]:
    """Everything named `checkpoint-STEP`, good or not, newest first; empty where there is no such folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, folder) from error
    return sorted(((int(m[1]), folder / name) for name in names if (m := NAME.fullmatch(name))), reverse=True)


def found(folder: Path, *, is_hashed: bool = True) -> list[Found]:
    """Every checkpoint there, newest first, each judged; without `is_hashed` by its manifest and sizes only.

    Changes nothing, and may be asked while a run commits: one that leaves meanwhile is left out.
    """
    judged = [(path, _judge(path, step=step, is_hashed=is_hashed)) for step, path in visible(folder)]
    return [each for path, each in judged if each.problem is None or os.path.lexists(path)]


def _judge(path: Path, *, step: int, is_hashed: bool) -> Found:
    content: dict[str, Any] = {}
    problem = None
    try:
        content = manifests.read_manifest(path)
        manifests.check_files(path, content["files"], is_hashed=is_hashed)
    except DamagedCheckpoint as error:
        problem = str(error)
    except LoradockError as error:  # it may not be read: that is what there is to say of it
        problem = error.what
    return Found(
        path=path,
        step=step,
        problem=problem,
        size_bytes=_size_bytes(path),
        time=content.get("time"),
        run_id=content.get("run_id"),
    )


def newest_good(
    folder: Path, *, run_id: str | None, is_read_only: bool = False
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint that verifies, and a line for each newer one that does not and was therefore set aside.

    None where there has never been one. NoCheckpoint where there are some and none is good, or the newest that is good
    belongs to another run than `run_id` (None: any); then nothing was moved. With `is_read_only` nothing is, ever.
    """
    candidates = [path for _, path in visible(folder)] or aside(folder)
    good, damaged = _first_good(candidates)
    if good is None and not damaged:
        return newest_good(folder, run_id=run_id, is_read_only=is_read_only) if candidates else (None, ())
    if good is None:
        raise no_checkpoint(folder, f"no checkpoint in {folder} is good", damaged)
    if run_id is not None and good.run_id != run_id:
        raise no_checkpoint(folder, f"{good.path} belongs to another run: {good.run_id}, not {run_id}", damaged)
    if is_read_only:
        return good, tuple(f"{path.name}: {reason}" for path, reason in damaged.items())
    lines = [f"{path.name}: {reason}; set aside as {set_aside(path).name}" for path, reason in damaged.items()]
    if SET_ASIDE.fullmatch(good.path.name):  # killed just when an equal step was to take its place
        lines.append(f"{good.path.name}: good, put back as checkpoint-{good.step}")
        _rename(good.path, folder / f"checkpoint-{good.step}")
        good = open_checkpoint(folder / f"checkpoint-{good.step}")
    return good, tuple(lines)


def _first_good(candidates: list[Path]) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The first that verifies, and why each before it does not; what a running job removed meanwhile is left out."""
    damaged: dict[Path, str] = {}
    for path in candidates:
        try:
            return open_checkpoint(path), damaged
        except DamagedCheckpoint as error:
            if os.path.lexists(path):
                damaged[path] = str(error)
    return None, damaged


def aside(folder: Path) -> list[Path]:
    """What was set aside, newest first: looked at only where nothing else is left."""
    names = os.listdir(folder) if folder.is_dir() else []
    numbered = [((int(m[1]), int(m[2])), folder / name) for name in names if (m := SET_ASIDE.fullmatch(name))]
    return [path for _, path in sorted(numbered, reverse=True)]


def no_checkpoint(folder: Path, what: str, damaged: Mapping[Path, str]) -> NoCheckpoint:
    """The refusal (83), with one problem for each damaged checkpoint."""
    return NoCheckpoint(
        what,
        hint=f"loradock checkpoint verify {folder.parent} verifies again; loradock train --fresh starts a new run",
        problems=[Problem(what=reason, file=str(path)) for path, reason in damaged.items()],
    )


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that is damaged or in the way to the first free `NAME.set-aside-N`; returns the new path."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.set-aside-{number}")):
        number += 1
    _rename(path, aside)
    return aside


def _rename(path: Path, target: Path) -> None:
    try:
        path.rename(target)
        atomic_io.sync_folder(path.parent)
    except OSError as error:
        raise storage_error(error, path) from error


def sweep(folder: Path) -> tuple[Path, ...]:
    """Remove what a killed run left staged or half removed; returns what could not be. Only the lock's owner may."""
    return _cleared(folder, (STAGE, TRASH)) if folder.is_dir() else ()


def _cleared(folder: Path, beginnings: tuple[str, ...]) -> tuple[Path, ...]:
    """Remove what is named so; returns what could not be."""
    leftovers = [folder / name for name in os.listdir(folder) if name.startswith(beginnings)]
    for path in leftovers:
        with contextlib.suppress(OSError):
            atomic_io.clear(path)
    return tuple(path for path in leftovers if os.path.lexists(path))


def _size_bytes(path: Path) -> int:
    """The bytes of the files in a folder, 0 for what is gone."""
    try:
        return sum(each.stat(follow_symlinks=False).st_size for each in os.scandir(path))
    except OSError:
        return 0
