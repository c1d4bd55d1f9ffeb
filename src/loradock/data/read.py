"""Sources to records: which files a source names, their digest, and their rows, streamed in bounded memory."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from loradock.config.places import is_remote, written
from loradock.config.sections.data import SourceConfig, TextUnit
from loradock.data import remote, remote_folder, shards
from loradock.data.readers import Damaged, Reader, Record, foreign, hub, known_suffixes, reader_of
from loradock.data.readers.base import CHUNK_BYTES
from loradock.data.readers.compression import decompressed
from loradock.data.shards import Chosen
from loradock.errors import DataError, InputMissing, StorageError
from loradock.files import nearby, pattern, regular
from loradock.files.system_errors import machine_error

__all__ = [
    "Record",
    "chosen",
    "digest",
    "files",
    "files_on_disk",
    "has_text",
    "is_here",
    "on_disk",
    "other_files",
    "place_of",
    "read",
    "remote_files",
    "shown_files",
]


SHOWN_CHARACTERS = 100


def read(source: SourceConfig, *, starts: list[int] | None = None) -> Generator[Record, None, None]:
    """The records of a source in the order of its files, one at a time.

    Lines are counted on over the files; `starts` gets, as each file begins, the number of lines before it, which
    `place_of` takes. Bad content never raises: it comes as a record with a problem, in its place among the good ones; a
    source without any row yields one such record. Raises InputMissing (a path that is not there or cannot be opened),
    DataError (a kind of file that is not read), HubError, and StorageError where reading fails half-way.
    """
    begun = [] if starts is None else starts
    records = _of_hub(source, begun) if hub.is_hub(source.path) else _local(source, begun)
    first = next(records, None)
    if first is None:
        yield Record(None, None, "there are no rows")
        return
    yield first
    yield from records


def place_of(files: Sequence[str], starts: Sequence[int], line: int | None) -> tuple[str, int | None]:
    """The file of a source and the line in it, of a line that was counted on over its files (None: the file read last).

    A record's number (below 0) stays one.
    """
    if line is None:
        return files[max(0, len(starts) - 1)], None
    number = bisect_left(starts, abs(line)) - 1
    return files[number], line - starts[number] if line > 0 else line + starts[number]


def shown_files(source: SourceConfig) -> list[str]:
    """The source's files as messages name them: a file that the configuration names is named as it does."""
    if is_remote(source.path):
        listing = remote_folder.listing(source)
        addresses = shards.of_listing(listing, source).files if listing else ()
        return [written(path) for path in addresses] or [remote.address(source.path)]
    paths = files(source)
    return [str(path) for path in paths] if paths and paths != [Path(source.path)] else [source.path]


def files(source: SourceConfig) -> list[Path]:
    """The files that `read` reads, in order; empty for a hub data set. Raises InputMissing and DataError."""
    return chosen(source).files


def chosen(source: SourceConfig) -> Chosen:
    """The same with what lies beside them and is not read."""
    if hub.is_hub(source.path):
        return Chosen(files=[])
    listing = remote_folder.listing(source) if is_remote(source.path) else None
    if listing:
        addresses = shards.of_listing(listing, source)
        return replace(addresses, files=remote_folder.copies(source, addresses.files), addresses=addresses.files)
    path = remote.local_file(source) if is_remote(source.path) else Path(source.path)
    try:
        is_there = path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or holds what no name can
        raise InputMissing(
            f"{source.path[:SHOWN_CHARACTERS]} cannot be read: {error}", hint=nearby.listing(path)
        ) from error
    if not is_there:
        if (found := shards.matching(path, source)).files:
            return found
        raise _missing(source.path, path)
    if not (path.is_dir() or path.is_file()):
        raise _no_file(source.path)
    return shards.of_directory(path, source) if path.is_dir() else shards.of_file(path, source)


def on_disk(source: SourceConfig, file: str) -> str:
    """Where a file lies that messages name (`shown_files`), for a command: of an address its copy."""
    if not is_remote(source.path):
        return file
    return str(dict(zip(shown_files(source), files(source), strict=True))[file])


def files_on_disk(source: SourceConfig) -> list[str]:
    """The same of all its files; of a data set of the hub its name."""
    return [on_disk(source, file) for file in shown_files(source)]


def is_here(source: SourceConfig) -> bool:
    """Whether all that is read of a source at an address was fetched to this machine, without asking anybody."""
    if listing := remote_folder.known_listing(source):
        files = shards.of_listing(listing, source).files
        return remote_folder.known_copies(source, files) is not None
    return remote.local_copy(source) is not None


def remote_files(source: SourceConfig) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of each file of an object store's folder or pattern; nothing of any other source."""
    if not is_remote(source.path) or remote_folder.listing(source) is None:
        return []
    copies = chosen(source)
    return [
        {"name": written(address), "size_bytes": file.stat().st_size, "sha256": content}
        for address, file, content in zip(copies.addresses, copies.files, _digests(source), strict=True)
    ]


def other_files(sources: Sequence[SourceConfig], recorded: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of each source that is a folder of an object store what it has otherwise than its record says."""
    for source, record in zip(sources, recorded, strict=False):
        if source.path == record["path"] and "files" in record:
            former, current = (
                {file["name"]: file["sha256"] for file in files} for files in (record["files"], remote_files(source))
            )
            if changes := remote_folder.difference(former, current):
                yield f"{source.path} was other files ({changes})"


def has_text(source: SourceConfig) -> bool:
    """True where a file of it is text that `data.text` makes documents of."""
    return any(named and named[0].units for named in map(reader_of, shown_files(source)))


def digest(source: SourceConfig) -> str:
    """SHA-256 (hex) of the content of all files of the source; for one file what `sha256sum` prints.

    Of several files, the digest of their digests in order. For a hub data set `OWNER/NAME@revision/split`, without
    touching the network. Raises as `files` does, and StorageError.
    """
    if hub.is_hub(source.path):
        return hub.identity(source)
    digests = _digests(source)
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _digests(source: SourceConfig) -> list[str]:
    """That of each file; copies of what lies elsewhere, which nobody writes to, are read once in a process."""
    if not is_remote(source.path):
        return [_content_digest(path, source.path) for path in files(source)]
    return [_copy_digest(path, source.path, _marks(path, source.path)) for path in files(source)]


def _marks(path: Path, named_as: str) -> tuple[int, int, int]:
    """Size, time and inode, by which another file of that name is told apart."""
    with closing(_open(path, named_as)) as stream:
        state = os.fstat(stream.fileno())
    return state.st_size, state.st_mtime_ns, state.st_ino


@functools.cache
def _copy_digest(path: Path, named_as: str, _version: tuple[int, int, int]) -> str:
    return _content_digest(path, named_as)


def _content_digest(path: Path, named_as: str) -> str:
    with closing(_open(path, named_as)) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
        except OSError as error:
            raise StorageError(f"reading {named_as} failed: {error}") from error


def _of_hub(source: SourceConfig, starts: list[int]) -> Iterator[Record]:
    starts.append(0)
    yield from hub.records(source)


def _local(source: SourceConfig, starts: list[int]) -> Iterator[Record]:
    before = 0
    for path, shown in zip(files(source), shown_files(source), strict=True):
        starts.append(before)
        last = 0
        for record in _file_records(path, shown, unit=source.text_unit):
            last = max(last, abs(record.line or 0))
            on = before if (record.line or 0) > 0 else -before
            yield record._replace(line=on + record.line) if before and record.line else record
        before += last


def _file_records(path: Path, shown: str, *, unit: TextUnit) -> Iterator[Record]:
    reader, compression = _reader(path, shown)
    line = 0
    file = _open(path, shown)
    plain = decompressed(file, compression) if compression else file
    with closing(plain), closing(_records(reader, plain, unit=unit)) as records:
        try:
            for record in records:
                line = abs(record.line or line)
                yield record
        except Damaged as error:
            yield Record(line + 1 if line else None, None, str(error))
        except OSError as error:
            raise StorageError(f"reading {shown} failed after line {line}: {error}") from error


def _records(reader: Reader, plain: BinaryIO, *, unit: TextUnit) -> Generator[Record, None, None]:
    """The records of an open file, or that it is not what its name says."""
    if reader.is_text and (problem := foreign(reader, plain)):
        yield Record(None, None, problem)
        return
    yield from reader.units.get(unit, reader.records)(plain)


def _reader(path: Path, shown: str) -> tuple[Reader, str]:
    found = reader_of(path.name)
    if found is None:
        raise DataError(f"{shown} is not a kind of file that is read", hint=f"known: {known_suffixes()}")
    return found


def _open(path: Path, shown: str) -> BinaryIO:
    try:
        return regular.opened(path, buffer_bytes=CHUNK_BYTES)
    except OSError as error:
        if error.errno == regular.NOT_REGULAR:
            raise _no_file(shown) from error
        missing = InputMissing(f"{shown} cannot be read: {error.strerror}", hint=f"ls -l {shlex.quote(str(path))}")
        raise machine_error(error) or missing from error


def _no_file(shown: str) -> DataError:
    return DataError(f"{shown} is a pipe or a device, not a file", hint="write it to a file: it is read twice")


def _missing(shown: str, path: Path) -> InputMissing:
    """What to say of a path that does not exist: where its link points, the nearest name, or a hub id's prefix."""
    parent = path.parent
    if shown == "-":
        return InputMissing("- is not a file", hint="standard input is read where the command line says --data -")
    if pattern.divided(path)[1]:
        return InputMissing(f"no file matches {shown}", hint=nearby.listing(path))
    if path.is_symlink():
        what = f"{shown} is a symlink to {path.readlink()}, which leads to no file"
        return InputMissing(what, hint=f"ls -l {shlex.quote(str(path))}")
    if not parent.is_dir():
        if shown.count("/") == 1 and not path.is_absolute():
            return InputMissing(f"{shown} does not exist", hint=f"for a hub data set write hub:{shown}")
        return InputMissing(f"{shown} does not exist, nor does its directory {parent}", hint=nearby.listing(path))
    return InputMissing(f"{shown} does not exist", hint=nearby.hint(path, shown))
