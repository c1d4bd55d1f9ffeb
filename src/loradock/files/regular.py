"""Files from outside, read whole at one door: a regular file of a plausible size, or an OSError that says what it is.

Who opens a FIFO waits for a writer, who reads a device never ends, and a file with a hole may have any size. What is
wrong comes as an OSError, as for any other file that cannot be read: `strerror` is the reason, `filename` the place.
"""

from __future__ import annotations

import errno
import os
import stat
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path

from loradock.files.system_errors import NOT_REGULAR, TOO_LARGE

MOST_BYTES = 64 << 20
"""Of a file of settings, of a manifest, of a record."""
MOST_LINES_BYTES = 512 << 20
"""Of lines that a run or a command wrote: a million steps."""
PART_BYTES = 1 << 20
OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a regular file",
}


def kind_of(mode: int) -> str:
    """What a file is, by its st_mode, in words."""
    return KINDS.get(stat.S_IFMT(mode), "something else")


def opened(file: Path, *, buffer_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
    """Open a regular file, or a link to one, to read bytes. OSError where it is none, or cannot be opened."""
    _check(file, os.stat(file).st_mode)  # a device may do something when it is opened
    stream = FileIO(str(file), opener=lambda _, flags: os.open(file, flags | os.O_NONBLOCK))
    try:
        _check(file, os.fstat(stream.fileno()).st_mode)
    except OSError:
        stream.close()
        raise
    return BufferedReader(stream, buffer_bytes)


def read(file: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file that is opened so. OSError where it is larger than `most_bytes`, or is no such file."""
    with opened(file) as stream:
        return _content(stream, file, most_bytes)


def read_private(file: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """As `read`, of a file that belongs to this user and that nobody else may write. OSError for any other.

    Who is handed a folder of somebody else's believes nothing that lies there.
    """
    with opened(file) as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & OPEN_TO_OTHERS:
            raise PermissionError(errno.EPERM, "others may have written it", str(file))
        return _content(stream, file, most_bytes)


def read_text(file: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """As `read`, as text. ValueError where it is not UTF-8."""
    return read(file, most_bytes=most_bytes).decode("utf-8")


def _content(stream: BufferedReader, file: Path, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    if os.fstat(stream.fileno()).st_size <= most_bytes:
        # In parts: the kernel allots what is asked for of a file below /proc/sys, and refuses megabytes.
        while sum(map(len, parts)) <= most_bytes and (part := stream.read(PART_BYTES)):
            parts.append(part)
    content = b"".join(parts)
    size_bytes = max(os.fstat(stream.fileno()).st_size, len(content))
    if size_bytes > most_bytes:
        what = f"it has {size_bytes:,} bytes, where {most_bytes:,} are the most that is plausible"
        raise OSError(TOO_LARGE, what, str(file))
    return content


def _check(file: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(mode):
        raise OSError(NOT_REGULAR, f"it is {kind_of(mode)}, not a regular file", str(file))
