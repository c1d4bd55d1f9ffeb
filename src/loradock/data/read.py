"""Sources to records: which files a source names, their digest, and their rows, streamed in bounded memory."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from loradock.config.schema import SourceConfig
from loradock.data.readers import Damaged, Reader, Record, hub, known_suffixes, reader_of
from loradock.data.readers.base import CHUNK_BYTES
from loradock.data.readers.compression import decompressed
from loradock.errors import DataError, InputMissing, StorageError

__all__ = ["Record", "digest", "files", "read"]


def read(source: SourceConfig) -> Iterator[Record]:
    """The records of a source in the order of its files, one at a time.

    Bad content never raises: it comes as a record with a problem, in its place among the good ones; a source without
    any row yields one such record. Raises InputMissing (a path that is not there or cannot be opened), DataError
    (a kind of file that is not read), HubError, and StorageError where reading fails half-way.
    """
    records = hub.records(source) if hub.is_hub(source.path) else _local(source)
    first = next(records, None)
    if first is None:
        yield Record(None, None, "there are no rows")
        return
    yield first
    yield from records


def files(source: SourceConfig) -> list[Path]:
    """The files that `read` reads, in order; empty for a hub data set. Raises InputMissing and DataError."""
    if hub.is_hub(source.path):
        return []
    path = Path(source.path).expanduser()
    if not path.exists():
        raise _missing(source.path, path)
    if not (path.is_dir() or path.is_file()):
        raise DataError(f"{source.path} is a pipe or a device, not a file", hint="write it to a file: it is read twice")
    return _arrow_files(path, source) if path.is_dir() else [path]


def digest(source: SourceConfig) -> str:
    """SHA-256 (hex) of the content of all files of the source; for one file what `sha256sum` prints.

    Of several files, the digest of their digests in order. For a hub data set `OWNER/NAME@revision/split`, without
    touching the network. Raises as `files` does, and StorageError.
    """
    if hub.is_hub(source.path):
        return hub.identity(source)
    digests: list[str] = []
    for path in files(source):
        with closing(_open(path, source.path)) as stream:
            try:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())  # pyright: ignore[reportArgumentType]
            except OSError as error:
                raise StorageError(f"reading {source.path} failed: {error}") from error
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _local(source: SourceConfig) -> Iterator[Record]:
    paths = files(source)
    rows_before = 0
    for path in paths:
        last = 0
        for record in _file_records(path, source.path):
            last = record.line or last
            yield record._replace(line=rows_before + record.line) if rows_before and record.line else record
        rows_before += last


def _file_records(path: Path, shown: str) -> Iterator[Record]:
    reader, compression = _reader(path, shown)
    line = 0
    file = _open(path, shown)
    plain = decompressed(file, compression) if compression else file
    with closing(plain), closing(reader.records(plain)) as records:
        try:
            for record in records:
                line = record.line or line
                yield record
        except Damaged as error:
            yield Record(line + 1 if line else None, None, str(error))
        except OSError as error:
            raise StorageError(f"reading {shown} failed after line {line}: {error}") from error


def _reader(path: Path, shown: str) -> tuple[Reader, str]:
    found = reader_of(path.name)
    if found is None:
        raise DataError(f"{shown} is not a kind of file that is read", hint=f"known: {known_suffixes()}")
    return found


def _open(path: Path, shown: str) -> BinaryIO:
    try:
        return path.open("rb", buffering=CHUNK_BYTES)
    except OSError as error:
        raise InputMissing(f"{shown} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error


def _arrow_files(path: Path, source: SourceConfig) -> list[Path]:
    """The arrow files of a directory that `datasets` saved; of several splits, the source's one."""
    if (path / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in path.iterdir() if child.is_dir())
        if source.split not in splits:
            raise InputMissing(
                f"{source.path} has no split {source.split!r}; it has {', '.join(splits) or 'none'}",
                hint=f"--set data.sources.0.split={splits[0]}" if splits else None,
            )
        path = path / source.split
    state = path / "state.json"
    if state.is_file():
        found = [path / str(entry["filename"]) for entry in json.loads(state.read_text("utf-8"))["_data_files"]]
    else:
        found = sorted(path.glob("*.arrow"))
    if not found:
        raise DataError(
            f"{source.path} is a directory without arrow files",
            hint="name its files one by one: --set data.sources.0.path=FILE",
        )
    if absent := [file.name for file in found if not file.is_file()]:
        raise InputMissing(f"{source.path} is incomplete: {', '.join(absent)} is missing", hint="copy it again")
    return found


def _missing(shown: str, path: Path) -> InputMissing:
    """What to say of a path that does not exist: the nearest name beside it, or a hub id without its prefix."""
    parent = path.parent
    if not parent.is_dir():
        if shown.count("/") == 1 and not path.is_absolute():
            return InputMissing(f"{shown} does not exist", hint=f"for a hub data set write hub:{shown}")
        return InputMissing(f"{shown} does not exist, nor does its directory {parent}", hint=f"ls {_existing(parent)}")
    names = sorted(child.name for child in parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    if close:
        return InputMissing(f"{shown} does not exist", hint=f"did you mean {shown[: -len(path.name)]}{close[0]}?")
    return InputMissing(f"{shown} does not exist", hint=f"ls {parent}")


def _existing(path: Path) -> Path:
    return next((parent for parent in path.parents if parent.is_dir()), Path("."))
