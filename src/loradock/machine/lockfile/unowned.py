"""Files of an environment that nothing vouches for, and byte-code that is not its source's."""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from loradock.machine.lockfile.installed import is_cached_bytecode

# What makes an environment writes these without a RECORD; the ways to the interpreter have to be links.
VENV_FILES = re.compile(
    r"pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG|loradock\.stamp"
    r"|bin/(?:[aA]ctivate(?:_this)?(?:\.\w+)?|deactivate\.bat|pydoc\.bat)"
)
VENV_LINKS = re.compile(r"lib64|bin/python(?:3(?:\.\d+)?)?")
CACHE_NAME = re.compile(r"(.+?)\.(?:cpython-|pypy)\d+.*\.pyc")
UNCHECKED_HASH = 0b01


def unowned(
    prefix: Path, on_disk: AbstractSet[str], *, owned: AbstractSet[str], manifest: AbstractSet[str]
) -> Iterator[tuple[str, str]]:
    """(path, what) for what no RECORD names, or a manifest does not where there is one.

    A directory in which no file is owned is one finding.
    """
    folders = _folders_of(owned, prefix)
    groups: Counter[str] = Counter()
    for path in on_disk - owned:
        if not (_belongs_to_venv(prefix, path) or bytecode_source(path) in owned):
            groups[_topmost_outside(path, folders)] += 1
        elif manifest and path not in manifest and not os.path.islink(path):
            yield path, "the manifest does not have it"
    for path, count in groups.items():
        yield path, "no package owns it" if count == 1 else f"no package owns it ({count} files)"
    if manifest:
        yield from ((path, "the manifest does not have it") for path in on_disk & owned - manifest)


def _folders_of(owned: AbstractSet[str], prefix: Path) -> set[str]:
    """Every directory that has an owned file in it, at whatever depth."""
    folders = {str(prefix)}
    for path in owned:
        folder = os.path.dirname(path)
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    return folders


def _topmost_outside(path: str, folders: set[str]) -> str:
    top = path
    while (folder := os.path.dirname(top)) not in folders:
        top = folder
    return path if os.path.basename(top) == "__pycache__" else top


def _belongs_to_venv(prefix: Path, path: str) -> bool:
    name = os.path.relpath(path, prefix)
    if os.path.islink(path):
        return bool(VENV_LINKS.fullmatch(name)) and (name != "lib64" or os.readlink(path) == "lib")
    return bool(VENV_FILES.fullmatch(name))


def bytecode_source(path: str) -> str | None:
    """The source that Python takes this file for the byte-code of, or None."""
    match = CACHE_NAME.fullmatch(os.path.basename(path))
    if match is None or not is_cached_bytecode(path):
        return None
    return os.path.join(os.path.dirname(os.path.dirname(path)), f"{match[1]}.py")


def foreign_bytecode(paths: AbstractSet[str], *, sources: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """(path, what) for byte-code that Python runs unasked and that is not of its source's hash.

    Other byte-code (of another Python, by time, by checked hash) Python itself compares, and compiles anew.
    """
    for path in paths:
        source = bytecode_source(path)
        if source not in sources or source is None:
            continue
        try:
            if not _is_from(source, path):
                yield path, f"it was not compiled from {os.path.basename(source)} as it is"
        except OSError as error:
            yield path, f"cannot be compared: {error.strerror}"


def _is_from(source: str, bytecode: str) -> bool:
    with open(bytecode, "rb") as stream:
        header = stream.read(16)
    if header[:4] != importlib.util.MAGIC_NUMBER or int.from_bytes(header[4:8], "little") != UNCHECKED_HASH:
        return True
    with open(source, "rb") as stream:
        return importlib.util.source_hash(stream.read()) == header[8:16]
