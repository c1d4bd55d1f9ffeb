"""Reads what a shared library asks of the dynamic linker: its name, what it needs, and where it looks for that."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from loradock.machine.answers import SharedObject

HEADER_BYTES = 64
LITTLE_64_BIT = b"\x7fELF\x02\x01"
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 1, 5, 15, 29
LONGEST_NAME_BYTES = 4096


def shared_object(path: Path) -> SharedObject | None:
    """The dynamic section of a 64-bit little-endian ELF file; None for any other file, and for one without it.

    Format: System V ABI, chapters 4 and 5.
    """
    try:
        with path.open("rb") as stream:
            return _read(stream, path)
    except (OSError, struct.error):
        return None


def _read(stream: BinaryIO, path: Path) -> SharedObject | None:
    header = stream.read(HEADER_BYTES)
    if header[:6] != LITTLE_64_BIT:
        return None
    (table,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    stream.seek(table)
    content = stream.read(size * count)
    # type, flags, offset, virtual address, physical address, size in the file, size in memory, alignment
    segments = [struct.unpack_from("<IIQQQQQQ", content, size * index) for index in range(count)]
    dynamic = next(((segment[2], segment[5]) for segment in segments if segment[0] == PT_DYNAMIC), None)
    if dynamic is None:
        return None
    stream.seek(dynamic[0])
    entries = list(_entries(stream.read(dynamic[1])))
    names = next((value for tag, value in entries if tag == DT_STRTAB), 0)
    loaded = [segment for segment in segments if segment[0] == PT_LOAD]
    start = next(
        (segment[2] + names - segment[3] for segment in loaded if segment[3] <= names < segment[3] + segment[5]), names
    )

    def texts(kind: int) -> tuple[str, ...]:
        return tuple(_name(stream, start + value) for tag, value in entries if tag == kind)

    return SharedObject(
        path=str(path),
        needed=texts(DT_NEEDED),
        rpath=_folders(texts(DT_RPATH)),
        runpath=_folders(texts(DT_RUNPATH)),
    )


def _entries(content: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in struct.iter_unpack("<qQ", content[: len(content) // 16 * 16]):
        if tag == DT_NULL:
            return
        yield tag, value


def _name(stream: BinaryIO, offset: int) -> str:
    stream.seek(offset)
    return stream.read(LONGEST_NAME_BYTES).partition(b"\0")[0].decode(errors="replace")


def _folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folder for path in paths for folder in path.split(":") if folder)
