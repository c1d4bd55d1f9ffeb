"""The tar of a bundle: written so that the same content gives the same bytes, and read so that no byte goes unseen.

Members follow one another in the order of their paths, the manifest last. A member's header is a function of its path
and size alone (GNU tar, mode 0644, no owner, no time); between members and after the last there are zeros only.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = tarfile.BLOCKSIZE
CHUNK_BYTES = 4 << 20
END_BYTES = 2 * BLOCK_BYTES


def header(path: str, size_bytes: int) -> bytes:
    """What stands before a member's content: one block, or three where the path is long."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size_bytes, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size_bytes: int) -> int:
    """The zeros after so many bytes of content."""
    return -size_bytes % BLOCK_BYTES


def archive_bytes(members: Iterable[tuple[str, int]]) -> int:
    """The size of a whole archive of these (path, size) members."""
    return END_BYTES + sum(len(header(path, size)) + size + padding(size) for path, size in members)


def add(file: BinaryIO, path: str, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Append a member whose size is known only when it has come: its header is written last. (size, sha256)."""
    begin = file.tell()
    file.write(header(path, 0))
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        file.write(chunk)
        digest.update(chunk)
        size_bytes += len(chunk)
    file.write(bytes(padding(size_bytes)))
    end = file.tell()
    file.seek(begin)
    file.write(header(path, size_bytes))
    file.seek(end)
    return size_bytes, digest.hexdigest()


def finish(file: BinaryIO) -> None:
    """The two blocks of zeros that end a tar."""
    file.write(bytes(END_BYTES))


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Where a member lies in the archive, in bytes."""

    path: str
    size_bytes: int
    begin: int


class Damaged(Exception):
    """The archive is not as loradock writes one; says at which byte."""


def members(file: BinaryIO) -> Iterator[Extent]:
    """Every member, by its headers alone; the file is left anywhere. Raises Damaged for what is no such archive.

    The content of a member is for the caller to read; what is between members is looked at here, byte by byte.
    """
    file.seek(0, 2)
    end, at = file.tell(), 0
    while True:
        file.seek(at)
        first = file.read(BLOCK_BYTES)
        if first == bytes(BLOCK_BYTES):
            break
        place = _place(file, first, at)
        next_offset = place.begin + place.size_bytes
        if next_offset > end:
            raise Damaged(f"{place.path} ends at byte {next_offset}, the file already at {end}: it is cut short")
        yield place
        file.seek(next_offset)
        if file.read(padding(place.size_bytes)) != bytes(padding(place.size_bytes)):
            raise Damaged(f"the bytes after {place.path}, from {next_offset} on, are no zeros")
        at = next_offset + padding(place.size_bytes)
    if end != at + END_BYTES:
        raise Damaged(f"it should end at byte {at + END_BYTES}, and has {end}")
    file.seek(at)
    if file.read(END_BYTES) != bytes(END_BYTES):
        raise Damaged(f"its end, from byte {at} on, is not zeros")


def _place(file: BinaryIO, first: bytes, at: int) -> Extent:
    """The member whose header begins here, if it is one that loradock writes."""
    if len(first) < BLOCK_BYTES:
        raise Damaged(f"it ends at byte {at + len(first)}, in the middle: it is cut short")
    try:
        info = tarfile.TarInfo.frombuf(first, "utf-8", "surrogateescape")
        begin = at + BLOCK_BYTES
        if info.type == tarfile.GNUTYPE_LONGNAME:
            name_bytes = file.read(min(info.size, CHUNK_BYTES)).rstrip(b"\0")
            begin += info.size + padding(info.size)
            file.seek(begin)
            info = tarfile.TarInfo.frombuf(file.read(BLOCK_BYTES), "utf-8", "surrogateescape")
            info.name = name_bytes.decode("utf-8", "surrogateescape")
            begin += BLOCK_BYTES
    except tarfile.HeaderError as failure:
        raise Damaged(f"at byte {at} there is no header of a member: {failure}") from failure
    expected = header(info.name, info.size)
    file.seek(at)
    if file.read(begin - at) != expected:
        raise Damaged(f"the header at byte {at}, of {info.name}, is not as loradock writes it: {_kind(info)}")
    return Extent(path=info.name, size_bytes=info.size, begin=begin)


def _kind(info: tarfile.TarInfo) -> str:
    return "a file with other attributes" if info.isreg() else "no plain file"


def content(file: BinaryIO, place: Extent) -> Iterator[bytes]:
    """The bytes of a member in chunks."""
    at, remaining = place.begin, place.size_bytes
    while remaining:
        file.seek(at)
        chunk = file.read(min(CHUNK_BYTES, remaining))
        if not chunk:
            raise Damaged(f"{place.path} cannot be read from byte {at} on")
        yield chunk
        at, remaining = at + len(chunk), remaining - len(chunk)
