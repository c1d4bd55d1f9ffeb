"""What an environment says is installed: each distribution's metadata and RECORD."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

SIGNED_ELSEWHERE = ("/RECORD", "/RECORD.jws", "/RECORD.p7s")
ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One line of a RECORD: an absolute path and what its bytes should be; no `algorithm` where it says nothing."""

    path: str
    algorithm: str | None = None
    digest: bytes = b""
    size_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Installed:
    """One distribution: the name (normalised) and version of its METADATA; `faults` where the directory disagrees."""

    name: str
    version: str
    folder: Path
    metadata: Message
    faults: tuple[str, ...] = ()

    @property
    def is_editable(self) -> bool:
        """True where the package's own code lies elsewhere, as in a checkout."""
        try:
            origin = json.loads((self.folder / "direct_url.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(origin.get("dir_info", {}).get("editable"))


def installed_in(site: Path) -> list[Installed]:
    """Every distribution (dist-info directory) of a site-packages directory, by name."""
    return sorted(
        (_read(folder) for folder in site.glob("*.dist-info")),
        key=lambda distribution: (distribution.name, distribution.folder),
    )


def _read(folder: Path) -> Installed:
    from packaging.utils import canonicalize_name

    said_name, _, said_version = folder.name.removesuffix(".dist-info").partition("-")
    try:
        metadata = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        metadata = Message()
    name = canonicalize_name(metadata["Name"] or said_name)
    version = metadata["Version"] or said_version
    faults: list[str] = []
    if (name, version) != (canonicalize_name(said_name), said_version):
        faults.append(f"METADATA says {name} {version}, the directory {folder.name}")
    return Installed(name=name, version=version, folder=folder, metadata=metadata, faults=tuple(faults))


def read_record(folder: Path) -> tuple[tuple[Recorded, ...] | None, list[str]]:
    """The lines of a dist-info directory's RECORD and what is wrong with some; None where there is none to read."""
    try:
        text = (folder / "RECORD").read_text(encoding="utf-8")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except OSError:
        return None, []
    except (csv.Error, UnicodeDecodeError) as error:
        return None, [f"RECORD cannot be read: {error}"]
    faults: list[str] = []
    records: list[Recorded] = []
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        try:
            records.append(_recorded(folder.parent, row))
        except ValueError as error:
            faults.append(f"RECORD line {number}: {error}")
    return tuple(records), faults


def _recorded(site: Path, row: list[str]) -> Recorded:
    if len(row) != 3 or not row[0]:
        raise ValueError("not `path,hash,size`")
    path = os.path.normpath(os.path.join(site, row[0]))
    if not row[1]:
        if not row[0].endswith(SIGNED_ELSEWHERE) and not is_cached_bytecode(row[0]):
            raise ValueError(f"no hash for {row[0]}")
        return Recorded(path=path)
    algorithm, _, encoded = row[1].partition("=")
    try:
        digest = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        digest = b""
    if ALGORITHMS.get(algorithm) != len(digest):
        raise ValueError(f"no usable hash for {row[0]}: {row[1]}")
    return Recorded(path=path, algorithm=algorithm, digest=digest, size_bytes=int(row[2]) if row[2] else None)


def is_cached_bytecode(path: str) -> bool:
    """True for what Python writes beside a source; a .pyc anywhere else is a module of its own."""
    return path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__"


def files_below(prefix: Path) -> Iterator[str]:
    """The path of everything below `prefix` that is no directory; a link is not followed, whatever it names."""
    waiting = [str(prefix)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path
