"""Directories that `datasets` saved: the folders of their splits, and the arrow files that a state.json names."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path

from loradock.errors import DataError, InputMissing
from loradock.files import regular

MARKS = frozenset(("dataset_dict.json", "state.json"))
"""Files that only a directory has that `datasets` saved."""
MOST_STATE_BYTES, LONGEST_NAME_BYTES = 16 << 20, 255


def is_saved(path: Path) -> bool:
    """Whether `datasets` saved the directory."""
    return any((path / name).is_file() for name in MARKS)


def splits(path: Path) -> dict[str, Path] | None:
    """The folders of the splits of a saved DatasetDict by their names; None where the directory is one data set."""
    if not (path / "dataset_dict.json").is_file():
        return None
    return {child.name: child for child in sorted(path.iterdir()) if child.is_dir() and is_saved(child)}


def files(path: Path, *, shown: str) -> list[Path]:
    """The arrow files of one saved data set. Raises DataError and InputMissing, which call it `shown`."""
    found = [path / name for name in _named_by(path / "state.json")]
    if not found:
        raise DataError(f"{shown} is a directory without arrow files", hint="save it again: Dataset.save_to_disk(DIR)")
    if absent := [file.name for file in found if not file.is_file()]:
        raise InputMissing(f"{shown} is incomplete: {', '.join(absent)} is missing", hint="copy it again")
    return found


def _named_by(state: Path) -> list[str]:
    """The files that a state.json names, which lie beside it. Raises DataError and InputMissing."""
    hint = f"copy it again, or name the arrow files by a pattern: '{state.parent}/*.arrow'"
    try:
        with regular.opened(state) as file:
            content = file.read(MOST_STATE_BYTES + 1)
    except OSError as error:
        raise InputMissing(
            f"{state} cannot be read: {error.strerror}", hint=f"ls -l {shlex.quote(str(state))}"
        ) from error
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
