"""One committed checkpoint: its manifest, and the proof that every byte is still what was written.

A checkpoint is a folder `checkpoint-STEP` of plain files and, written last, `manifest.json`::

    format, run_id, step, time (UTC), fingerprint, progress,
    files {name: {bytes, sha256}}, sha256 (of the manifest without this line)

The manifest's text is canonical, so that any changed byte of the manifest itself is noticed too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from loradock.errors import InputMissing, LoradockError, StorageError
from loradock.files import foreign_json, regular
from loradock.files.system_errors import machine_error

MANIFEST = "manifest.json"
FORMAT = 1
NAME = re.compile(r"checkpoint-([0-9]+)")
SET_ASIDE = re.compile(r"checkpoint-([0-9]+)\.set-aside-([0-9]+)")
FIELDS = {"run_id": str, "step": int, "time": str, "fingerprint": dict, "progress": dict, "files": dict}
# What the disk says of a file that is gone or broken; anything else (no permission, a server away) is no damage.
DAMAGE = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA,
    regular.NOT_REGULAR, regular.TOO_LARGE,
)  # fmt: skip


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what was committed; the message says in what way, without naming it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint. `files` is {name: sha256}; `progress` and `fingerprint` are what the run put in.

    `sizes_bytes` is {name: bytes}: weights and their optimiser state have the size that the model gives them.
    """

    path: Path
    step: int
    run_id: str
    time: str
    fingerprint: dict[str, str]
    progress: dict[str, Any]
    files: dict[str, str]
    sizes_bytes: dict[str, int]

    def read(self, name: str) -> bytes:
        """The bytes of one file, hashed again: what is loaded is what was verified. Raises DamagedCheckpoint."""
        if name not in self.files:
            raise DamagedCheckpoint(f"{name} is missing")
        content = _bytes(self.path / name, most_bytes=self.sizes_bytes[name])
        if hashlib.sha256(content).hexdigest() != self.files[name]:
            raise DamagedCheckpoint(f"{name} was changed")
        return content


def text(content: Mapping[str, Any]) -> bytes:
    """The manifest file of these fields: sorted keys, one spacing, its own sha256. ValueError for what JSON has not."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    digest = hashlib.sha256(_canonical(plain)).hexdigest()
    return _canonical({**plain, "sha256": digest})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, proven unchanged and of this step. Raises DamagedCheckpoint."""
    if not stat.S_ISDIR(_status(path).st_mode):
        raise DamagedCheckpoint("it is not a folder")
    try:
        raw = _bytes(path / MANIFEST)
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint("it has no manifest" if not os.path.lexists(path / MANIFEST) else str(error)) from error
    try:
        content = foreign_json.loads(raw)
        content.pop("sha256")
        is_unchanged = text(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} was changed or cut off") from error
    if not is_unchanged:
        raise DamagedCheckpoint(f"{MANIFEST} was changed")
    if content.get("format") != FORMAT:
        raise DamagedCheckpoint(f"{MANIFEST} is of format {content.get('format')}; this loradock knows {FORMAT}")
    if any(type(content.get(name)) is not kind for name, kind in FIELDS.items()):
        raise DamagedCheckpoint(f"{MANIFEST} does not hold {', '.join(FIELDS)}")
    if not all(isinstance(each, str) for each in content["fingerprint"].values()):
        raise DamagedCheckpoint(f"{MANIFEST}: fingerprint does not map fields to texts")
    if wrong := [name for name, each in content["files"].items() if not _is_file(name, each)]:
        raise DamagedCheckpoint(f"{MANIFEST}: files: {wrong[0]!r} has no bytes and sha256 of a file")
    if path.name.split(".")[0] != f"checkpoint-{content['step']}":
        raise DamagedCheckpoint(f"its manifest is of step {content['step']}")
    return content


def _is_file(name: str, about: object) -> bool:
    """Whether this is a plain name with the size and hash of a file."""
    if not isinstance(about, dict) or name in ("", ".", "..", MANIFEST) or "/" in name:
        return False
    content = cast("dict[str, object]", about)
    return type(content.get("bytes")) is int and isinstance(content.get("sha256"), str)


def check_files(path: Path, files: Mapping[str, Mapping[str, Any]], *, is_hashed: bool) -> None:
    """Every file there with its size (and its sha256), and no other. DamagedCheckpoint for the first wrong one."""
    try:
        there = set(os.listdir(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    for name, wanted in files.items():
        if name not in there:
            raise DamagedCheckpoint(f"{name} is missing")
        status = _status(path / name)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedCheckpoint(f"{name} is not a regular file")
        if status.st_size != wanted["bytes"]:
            raise DamagedCheckpoint(f"{name} has {status.st_size} bytes instead of {wanted['bytes']}")
    if extra := sorted(there - {*files, MANIFEST}):
        raise DamagedCheckpoint(f"{extra[0]} was not part of it")
    for name in files if is_hashed else ():
        if _digest(path / name) != files[name]["sha256"]:
            raise DamagedCheckpoint(f"{name} was changed")


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint whole: manifest, sizes, every sha256. Raises DamagedCheckpoint with what is wrong."""
    manifest = read_manifest(path)
    check_files(path, manifest["files"], is_hashed=True)
    return Checkpoint(
        path=path,
        step=manifest["step"],
        run_id=manifest["run_id"],
        time=manifest["time"],
        fingerprint=manifest["fingerprint"],
        progress=manifest["progress"],
        files={name: each["sha256"] for name, each in manifest["files"].items()},
        sizes_bytes={name: each["bytes"] for name, each in manifest["files"].items()},
    )


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


def _status(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as error:
        raise _unreadable(path, error) from error


def _bytes(file: Path, *, most_bytes: int = regular.MOST_BYTES) -> bytes:
    try:
        return regular.read(file, most_bytes=most_bytes)
    except OSError as error:
        raise _unreadable(file, error) from error


def _digest(file: Path) -> str:
    try:
        with regular.opened(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(path: Path, error: OSError) -> DamagedCheckpoint | LoradockError:
    """Damage where the file is gone or broken; else a refusal, since the checkpoint may well be good."""
    if error.errno in DAMAGE:
        return DamagedCheckpoint(f"{path.name} cannot be read ({error.strerror})")
    what = f"cannot read {path}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return InputMissing(what, hint=f"chmod -R u+rwX {path.parent}, as its owner")
    return machine_error(error) or StorageError(what, hint="check the disk or its server (dmesg), and try again")
