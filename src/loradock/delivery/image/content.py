"""The normalised content digest of an image: what is in it, whatever the engine calls it and whenever it was built.

The digest is the sha256 of a text, the manifest: one line of the image's configuration, then one sorted line for each
path. So `sha256sum` of a written manifest is the digest, and two manifests name the paths that differ.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from loradock.delivery.image import labels
from loradock.errors import EnvironmentUnfit, InputMissing, Interrupted
from loradock.files.system_errors import storage_error

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

TITLE = "loradock content 1"
CHUNK_BYTES = 1 << 20
# Left out, each with its reason. Measured on two builds without cache: nothing else differed.
VOLATILE = {
    "/.dockerenv": "the engine makes it in every container",
    "/dev": "the engine mounts its own over it",
    "/proc": "the kernel's",
    "/sys": "the kernel's",
    "/etc/hostname": "the engine mounts its own over it",
    "/etc/hosts": "the engine mounts its own over it",
    "/etc/resolv.conf": "the engine mounts its own over it",
    "/etc/mtab": "the engine makes it where it is missing",
}
# The parts of the configuration that change what a container is; the rest is the engine's bookkeeping.
CONFIG = (
    "Entrypoint", "Cmd", "User", "WorkingDir", "Healthcheck", "StopSignal", "Labels", "ExposedPorts", "Volumes",
    "Shell", "OnBuild",
)  # fmt: skip
KINDS = {
    tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.CONTTYPE: "file", tarfile.GNUTYPE_SPARSE: "file",
    tarfile.SYMTYPE: "link", tarfile.DIRTYPE: "dir", tarfile.FIFOTYPE: "fifo", tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Content:
    """What an image holds. `entries`: path -> its line without the path; "config" is the first one."""

    entries: dict[str, str]
    read_bytes: int = 0
    seconds: float = 0.0

    @property
    def manifest(self) -> str:
        """The text that the digest is of."""
        paths = sorted(path for path in self.entries if path != "config")
        lines = [TITLE, f"config {self.entries['config']}"]
        lines += [f"{self.entries[path]} {json.dumps(path)}" for path in paths]
        return "\n".join(lines) + "\n"

    @property
    def digest(self) -> str:
        """`sha256:...` of the manifest."""
        return f"sha256:{hashlib.sha256(self.manifest.encode()).hexdigest()}"


class Source(io.RawIOBase):
    """Chunks of bytes as a stream that tarfile can read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self.chunks = iter(chunks)
        self.rest = b""
        self.read_bytes = 0

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        parts, missing = [], size
        while missing > 0:
            if not self.rest:
                self.rest = next(self.chunks, b"")
                if not self.rest:
                    break
            parts.append(self.rest[:missing])
            self.rest = self.rest[missing:]
            missing -= len(parts[-1])
        data = b"".join(parts)
        self.read_bytes += len(data)
        return data

    def drain(self) -> None:
        """Read what follows the archive's end, so that the connection is free again."""
        for chunk in self.chunks:
            self.read_bytes += len(chunk)


def content_of(client: DockerClient, image: Image) -> Content:
    """Read all of an image through a container that is made, never started, and removed whatever happens."""
    from docker.errors import APIError

    began = time.monotonic()
    name = f"loradock-content-{uuid.uuid4().hex[:12]}"
    try:
        container = client.containers.create(
            image, ["-"], name=name, network_mode="none", labels={labels.CONTAINER: "content"}
        )
        source = Source(cast("Iterable[bytes]", container.export(chunk_size=CHUNK_BYTES)))
        entries = dict(_entries(source))
        source.drain()
    except APIError as error:
        raise EnvironmentUnfit(
            f"the engine could not hand over the image {image.id}: {error.explanation or error}",
            hint="journalctl -u docker; loradock prune shows what takes the engine's space",
        ) from error
    except KeyboardInterrupt:
        raise Interrupted("stopped before the image was read", hint="run the same command again") from None
    finally:
        _remove(client, name)
    entries["config"] = _config(image.attrs)
    return Content(entries=entries, read_bytes=source.read_bytes, seconds=time.monotonic() - began)


def _remove(client: DockerClient, name: str) -> None:
    """Remove the container by the name we gave it: it may exist although the answer never arrived."""
    from docker.errors import NotFound

    try:
        client.containers.get(name).remove(force=True, v=True)
    except NotFound:
        return


def _config(attrs: dict[str, Any]) -> str:
    """The configuration as one line; what is not set is not named, so that engines agree."""
    config = attrs["Config"]
    parts = {key: config.get(key) for key in CONFIG}
    parts["Env"] = sorted(config.get("Env") or [])
    parts["Platform"] = f"{attrs['Os']}/{attrs['Architecture']}"
    return json.dumps({key: value for key, value in parts.items() if value}, sort_keys=True, separators=(",", ":"))


def _entries(source: Source) -> Iterator[tuple[str, str]]:
    """(path, line) of each entry of an exported file system that is not volatile."""
    files: dict[str, str] = {}
    with tarfile.open(fileobj=source, mode="r|", bufsize=CHUNK_BYTES) as archive:
        while (member := archive.next()) is not None:
            path = _absolute(member.name)
            # A hard link is the file it names: which of its names comes first is the engine's choice.
            what = files[_absolute(member.linkname)] if member.islnk() else _what(archive, member)
            if member.isreg():
                files[path] = what
            if not is_volatile(path):
                yield path, f"{_owner(member)} {what}"


def _absolute(name: str) -> str:
    return "/" if name in {".", "./"} else f"/{name.removeprefix('./').strip('/')}"


def is_volatile(path: str) -> bool:
    """True for a path that says nothing about the image."""
    return any(path == volatile or path.startswith(f"{volatile}/") for volatile in VOLATILE)


def _owner(member: tarfile.TarInfo) -> str:
    return f"{member.mode & 0o7777:04o} {member.uid}:{member.gid}"


def _what(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Kind, then what is particular to it: size and sha256, target, device numbers; then extended attributes."""
    kind = KINDS[member.type]
    detail = ""
    if kind == "file":
        stream = archive.extractfile(member)
        digest = hashlib.sha256()
        while stream is not None and (chunk := stream.read(CHUNK_BYTES)):
            digest.update(chunk)
        detail = f" {member.size} {digest.hexdigest()}"
    elif kind == "link":
        detail = f" -> {json.dumps(member.linkname)}"
    elif kind in {"char", "block"}:
        detail = f" {member.devmajor}:{member.devminor}"
    attributes = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    return f"{kind}{detail}" + (f" {json.dumps(attributes, sort_keys=True)}" if attributes else "")


def differences(first: Content, second: Content) -> list[str]:
    """The paths (and "config") that the two do not share, each with what differs."""
    changes = []
    for path in sorted(first.entries.keys() | second.entries.keys()):
        mine, theirs = first.entries.get(path), second.entries.get(path)
        if mine is None:
            changes.append(f"{path}: only in the other: {theirs}")
        elif theirs is None:
            changes.append(f"{path}: only in this one: {mine}")
        elif mine != theirs:
            changes.append(f"{path}: {_change(mine, theirs)}")
    return changes


def _change(mine: str, theirs: str) -> str:
    if mine.startswith("{") and theirs.startswith("{"):
        old, new = json.loads(mine), json.loads(theirs)
        keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return "; ".join(f"{key} is {json.dumps(old.get(key))}, there {json.dumps(new.get(key))}" for key in keys)
    return f"{mine}, there {theirs}"


def read_manifest(path: Path) -> Content:
    """A manifest that was written before."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputMissing(
            f"{path}: no such manifest", hint=f"loradock image verify IMAGE --write-manifest {path}"
        ) from None
    except OSError as error:
        raise storage_error(error, path) from error
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != TITLE or not lines[1].startswith("config "):
        raise InputMissing(f"{path} is not a manifest of an image", hint="write one with --write-manifest")
    entries = {"config": lines[1].removeprefix("config ")}
    for line in lines[2:]:
        match = re.fullmatch(r'(.*?) ("(?:[^"\\]|\\.)*")', line)
        if match is None:
            raise InputMissing(f"{path} is damaged: {line[:80]}", hint="write it again with --write-manifest")
        entries[json.loads(match[2])] = match[1]
    return Content(entries=entries)
