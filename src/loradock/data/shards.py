"""Sources of several files: a directory of shards, one that `datasets` saved, or the files that a pattern matches."""

from __future__ import annotations

import glob
import json
from collections import Counter
from pathlib import Path

from loradock.config.schema import SourceConfig
from loradock.data.readers import known_suffixes, reader_of
from loradock.errors import DataError, InputMissing
from loradock.files import regular

MOST_STATE_BYTES, LONGEST_NAME_BYTES = 16 << 20, 255
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


def matching(pattern: Path) -> list[Path]:
    """The files that a pattern (`*`, `?`, `[...]`, `**`) matches, by name; none where it is no pattern."""
    if not glob.has_magic(str(pattern)):
        return []
    return [path for each in sorted(glob.glob(str(pattern), recursive=True)) if (path := Path(each)).is_file()]


def of_directory(path: Path, source: SourceConfig) -> list[Path]:
    """The files of a directory, by name: all of one kind. Raises DataError and InputMissing."""
    if _is_saved(path):
        return _saved(path, source)
    found: dict[str, list[Path]] = {}
    for child in sorted(path.iterdir()):
        known = None if child.name.startswith((".", "_")) or not child.is_file() else reader_of(child.name)
        if known:
            found.setdefault(known[0].name, []).append(child)
    if not found:
        below = next((child for child in sorted(path.rglob("*")) if child.is_file() and reader_of(child.name)), None)
        hint = (
            f"give a pattern: {source.path.rstrip('/')}/**/*{below.suffix}" if below else f"known: {known_suffixes()}"
        )
        raise DataError(f"{source.path} is a directory without files of rows", hint=hint)
    if len(found) > 1:
        counts = ", ".join(f"{len(paths)} {name}" for name, paths in found.items())
        most = max(found.values(), key=len)
        hint = f"name those to train on by a pattern: {source.path.rstrip('/')}/*{most[0].suffix}"
        raise DataError(f"{source.path} holds several kinds of files ({counts})", hint=hint)
    (paths,) = found.values()
    _refuse_splits(paths, source)
    return paths


def below(path: str) -> list[str]:
    """A line where folders of a directory hold files of rows, which are not read: how many, and a pattern for all."""
    directory = Path(path)
    if not directory.is_dir() or _is_saved(directory):
        return []
    inner = (child for folder in sorted(directory.iterdir()) if folder.is_dir() for child in sorted(folder.rglob("*")))
    found = [child for child in inner if child.is_file() and reader_of(child.name)]
    if not found:
        return []
    count = "1 file" if len(found) == 1 else f"{len(found)} files"
    pattern = f"{path.rstrip('/')}/**/*{found[0].suffix}"
    return [f"warning: {path}: {count} in folders below it not read ({found[0]}); a pattern reads all: {pattern}"]


def _is_saved(path: Path) -> bool:
    """Whether `datasets` saved the directory."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file() or any(path.glob("*.arrow"))


def _refuse_splits(paths: list[Path], source: SourceConfig) -> None:
    """DataError where the names tell of rows to test on among those to train on."""
    splits = {split for path in paths for split in SPLITS if path.name.lower().startswith(split)}
    if len(splits) > 1 and "train" in splits:
        hint = f"name those to train on by a pattern: {source.path.rstrip('/')}/train*"
        raise DataError(f"{source.path} holds the files of several splits ({', '.join(sorted(splits))})", hint=hint)


def _saved(path: Path, source: SourceConfig) -> list[Path]:
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
    found = [path / name for name in _named_by(state)] if state.is_file() else sorted(path.glob("*.arrow"))
    if not found:
        raise DataError(
            f"{source.path} is a directory without arrow files",
            hint="name its files one by one: --set data.sources.0.path=FILE",
        )
    if absent := [file.name for file in found if not file.is_file()]:
        raise InputMissing(f"{source.path} is incomplete: {', '.join(absent)} is missing", hint="copy it again")
    return found


def _named_by(state: Path) -> list[str]:
    """The files that a state.json names, which lie beside it. Raises DataError and InputMissing."""
    hint = f"copy it again, or name the arrow files by a pattern: '{state.parent}/*.arrow'"
    try:
        with regular.opened(state) as file:
            content = file.read(MOST_STATE_BYTES + 1)
    except OSError as error:
        raise InputMissing(f"{state} cannot be read: {error.strerror}", hint=f"ls -l {state}") from error
    try:
        if len(content) > MOST_STATE_BYTES:
            raise ValueError(f"it is longer than {MOST_STATE_BYTES >> 20} MiB")
        held = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{state} is not readable JSON: {error or 'nested too deeply'}", hint=hint) from error
    entries = held.get("_data_files") if isinstance(held, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{state}: _data_files is not a list of files", hint=hint)
    names: list[str] = []
    for number, entry in enumerate(entries):
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _is_name(name):
            raise DataError(f"{state}: _data_files[{number}].filename is not the name of a file beside it", hint=hint)
        names.append(name)
    if len(set(names)) < len(names):
        raise DataError(f"{state}: _data_files names a file twice: {Counter(names).most_common(1)[0][0]}", hint=hint)
    return names


def _is_name(text: str) -> bool:
    """Whether a file of a directory can be called so."""
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < length <= LONGEST_NAME_BYTES and text == Path(text).name and "\0" not in text
