"""The content of a model's files as one digest: whole where they are small, by an even sample where they are large."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

from loradock.files import regular
from loradock.files.foreign import unreadable

WHOLE_BYTES = 1 << 30
BLOCK_BYTES = 1 << 20
BLOCKS = 64


def digest(files: Collection[Path]) -> str:
    """sha256 (hex) over the names, sizes and contents of the files, in the order of their paths.

    Up to 1 GiB in all is read whole. Of more, each file gives its first and its last MiB and 64 MiB spread evenly
    between: another training of the same model is seen, a change between the blocks that are read is not.
    Raises InputMissing or StorageError where a file cannot be read.
    """
    try:
        return _digest(files)
    except OSError as error:
        raise unreadable(error, error.filename or ", ".join(map(str, files))) from error


def _digest(files: Collection[Path]) -> str:
    sizes_bytes = {file: file.stat().st_size for file in files}
    is_whole = sum(sizes_bytes.values()) <= WHOLE_BYTES
    hasher = hashlib.sha256()
    for file in sorted(files):
        size = sizes_bytes[file]
        hasher.update(f"{file.name}\0{size}\0".encode())
        with regular.opened(file) as stream:
            for start in range(0, size, BLOCK_BYTES) if is_whole else spread(size):
                stream.seek(start)
                hasher.update(stream.read(BLOCK_BYTES))
    return hasher.hexdigest()


def spread(size_bytes: int) -> Iterator[int]:
    """Where the blocks begin that are read of a large file: the first, BLOCKS evenly between, and the last."""
    last = max(0, size_bytes - BLOCK_BYTES)
    yield from sorted({last * index // (BLOCKS + 1) for index in range(BLOCKS + 2)})
