"""Folders and patterns of object stores: what they hold is listed, and files of them are fetched as single ones are.

A process lists an address once, so that it reads one state from beginning to end. What is read of it is listed again
after it was fetched: where somebody wrote there meanwhile, that is an error, not a mixture of two states.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loradock.config.places import written
from loradock.config.sections.data import SourceConfig
from loradock.data import remote
from loradock.data.remote import Copy
from loradock.errors import HubError, LoradockError, UsageError
from loradock.files import atomic_io, regular
from loradock.machine import hub_access
from loradock.text.amounts import some_of

MAGIC = ("*", "[")
"""What makes an address a pattern; `?` begins a version of a file."""
FETCHED_AT_ONCE = 8
SHOWN_NAMES = 3

Versions = Mapping[str, Mapping[str, str]]
"""What a store says of the version of each file, by its address."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a folder or a pattern: `versions` by address in the order of their names, and folders beside them.

    `folder`: what was listed, of a pattern the last folder in which nothing is a wildcard. `former`: what was listed
    before on this machine, where it was something else.
    """

    url: str
    folder: str
    versions: Versions
    folders: tuple[str, ...] = ()
    former: Versions | None = None

    @property
    def files(self) -> list[Path]:
        """The addresses as paths (see `written`), so that names are told apart as those of a local folder are."""
        return [Path(url) for url in self.versions]

    @property
    def base(self) -> Path:
        """`folder` as a path."""
        return Path(self.folder)

    @property
    def pattern(self) -> str:
        """What is a pattern below the folder; "" where nothing is."""
        return self.url.rstrip("/").removeprefix(self.folder).lstrip("/")


def is_pattern(url: str) -> bool:
    """Whether an address of a store has wildcards."""
    return any(sign in url for sign in MAGIC)


def _divided(url: str, *, exists: Callable[[str], bool]) -> tuple[str, str]:
    """The folder of an address in which nothing is a wildcard, and the pattern below it ("" where there is none).

    `exists` says whether a name with signs of a pattern is there as it is written.
    """
    parts = url.rstrip("/").split("/")
    for index, part in enumerate(parts):
        if is_pattern(part) and not exists("/".join(parts[: index + 1])):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return "/".join(parts), ""


def listing(source: SourceConfig) -> Listing | None:
    """What the source's address holds, where it is a folder or a pattern; None for a file.

    Raises as `remote.local_file`, and UsageError for a folder of a web server, which has no list of its files.
    """
    url = source.path
    remote.refuse_credential(url)
    if remote.is_store(url):
        return _listed(url, remote.cache_of(source))
    if url.endswith("/"):
        what = f"{url}: a web server has no list of the files of a folder"
        raise UsageError(what, hint=remote.EACH_FILE)
    return None


def known_listing(source: SourceConfig) -> Listing | None:
    """What was listed last of the source's address, without asking anybody; None where nothing was."""
    return _noted(source.path, remote.cache_of(source))


def copies(source: SourceConfig, files: Sequence[Path]) -> list[Path]:
    """The copies of files of the source's listing on this machine, fetched first where they are not the listed ones.

    Raises as `remote.local_file`, and HubError where one of them changed meanwhile.
    """
    return [*_copies(source.path, tuple(map(written, files)), remote.cache_of(source))]


def known_copies(source: SourceConfig, files: Sequence[Path]) -> list[Path] | None:
    """The same without asking anybody; None where one of them is not here."""
    copies = [remote.known(written(file), remote.cache_of(source)) for file in files]
    return None if None in copies else [copy.file for copy in copies if copy]


def changes(source: SourceConfig, read: Sequence[Path]) -> str:
    """What of the files that are read is another than when they were listed before on this machine; else nothing."""
    current = _listed(source.path, remote.cache_of(source))
    if current is None or current.former is None:
        return ""
    current_read = {address: current.versions[address] for address in map(written, read)}
    former = {
        url: version for url, version in current.former.items() if url in current_read or url not in current.versions
    }
    return difference(former, current_read)


def difference(former: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Which files of a folder are new, gone or others than they were, in words; nothing where none is."""
    kinds = {
        "new": [url for url in current if url not in former],
        "gone": [url for url in former if url not in current],
        "changed": [url for url in current if url in former and current[url] != former[url]],
    }
    return "; ".join(f"{kind}: {some_of(urls, most=SHOWN_NAMES)}" for kind, urls in kinds.items() if urls)


@functools.cache
def _listed(url: str, folder: Path) -> Listing | None:
    former = _noted(url, folder)
    if switches := hub_access.switches(os.environ):
        if former is not None:
            return former
        if "*" in url or url.endswith("/"):
            raise remote.switched_off(url, switches)
        return None
    with remote.asking(url):
        current = _asked(url)
    if current is None or (former and current.versions == former.versions):
        return current
    _note(current, folder)
    return replace(current, former=former and former.versions)


def _asked(url: str) -> Listing | None:
    """What a store says that an address holds; None for a file."""
    start, _ = _divided(url, exists=lambda _: False)
    if start.count("/") < 2:
        raise UsageError(f"{url}: the bucket has a wildcard", hint="name the bucket")
    store, base = remote.opened_store(start)
    folder, pattern = _divided(url, exists=lambda name: store.exists(base + name.removeprefix(start)))
    base += folder.removeprefix(start)
    if pattern:
        entries = _matching(store, base, pattern)
    elif not url.endswith("/") and store.info(base)["type"] != "directory":
        return None
    else:
        entries = store.ls(base, detail=True)
    versions: dict[str, Mapping[str, str]] = {}
    folders: list[str] = []
    for entry in entries:
        name = str(entry["name"]).removeprefix(base).lstrip("/")
        address = f"{folder}/{name}"
        if not name or name.endswith("/"):  # what some tools leave in the place of a folder
            continue
        if pattern and _is_hidden(name, pattern):
            continue
        if entry["type"] == "directory":
            folders += [] if pattern else [name]
        elif written(Path(address)) != address:
            raise UsageError(f"{address} has a name that no path can have", hint="name it by itself, or copy it")
        else:
            versions[address] = remote.version_of(entry)
    return Listing(url=url, folder=folder, versions=dict(sorted(versions.items())), folders=tuple(sorted(folders)))


def _matching(store: Any, base: str, pattern: str) -> Sequence[Mapping[str, Any]]:
    """What a pattern below a folder matches; `glob` would take signs in the name of the folder for wildcards."""
    from fsspec.utils import glob_translate

    if not is_pattern(base) and "?" not in base:
        return [*store.glob(f"{base}/{pattern}", detail=True).values()]
    matches = re.compile(glob_translate(pattern)).match
    depth = None if "**" in pattern else pattern.count("/") + 1
    below = store.find(base, maxdepth=depth, withdirs=True, detail=True)
    return [entry for name, entry in below.items() if matches(name.removeprefix(base).lstrip("/"))]


def _is_hidden(name: str, pattern: str) -> bool:
    """Whether a folder of a name, or the name itself, begins with a dot that no part of the pattern begins with."""
    dotted = [part for part in pattern.split("/") if part.startswith(".")]
    return any(
        part.startswith(".") and not any(fnmatch.fnmatchcase(part, each) for each in dotted) for part in name.split("/")
    )


@functools.cache
def _copies(url: str, addresses: tuple[str, ...], folder: Path) -> tuple[Path, ...]:
    current = _listed(url, folder)
    assert current is not None
    if switches := hub_access.switches(os.environ):
        copies = {address: remote.known(address, folder) for address in addresses}
        absent = next((address for address, copy in copies.items() if copy is None), None)
        if absent:
            raise remote.switched_off(absent, switches)
        return tuple(copy.file for copy in copies.values() if copy)
    with remote.asking(url):
        store, base = remote.opened_store(current.folder)

    def copy_of(address: str) -> Copy:
        version = current.versions[address]
        copy = remote.known(address, folder)
        if copy and remote.is_same(copy.version, version):
            return copy

        def fetch(_: str, place: Path, __: Copy | None) -> Mapping[str, str]:
            with remote.asking(address):
                store.get_file(base + address.removeprefix(current.folder), str(place))
            if version.get("size") not in (None, str(place.stat().st_size)):
                raise _moving([address])
            is_fetched.append(address)
            return version

        return remote.fetched(address, folder, fetch)

    is_fetched: list[str] = []
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as threads:
        files = [copy.file for copy in threads.map(copy_of, addresses)]
    if is_fetched:
        with remote.asking(url):
            answer = _asked(url)
        versions = answer.versions if answer else {}
        if moving := [address for address in addresses if versions.get(address) != current.versions[address]]:
            raise _moving(moving)
    return tuple(files)


def _moving(addresses: Sequence[str]) -> LoradockError:
    what = f"{some_of(addresses, most=SHOWN_NAMES)} changed between the listing and the end of reading"
    return HubError(what, hint="start again when nothing writes there any more")


def _note(listing: Listing, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    noted = {"versions": listing.versions, "folder": listing.folder}
    atomic_io.replace(_note_of(listing.url, folder), json.dumps(noted))


def _noted(url: str, folder: Path) -> Listing | None:
    """What was listed last."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        noted = json.loads(regular.read(_note_of(url, folder)))
        versions = {str(address): dict(version) for address, version in noted["versions"].items()}
        return Listing(url=url, folder=noted["folder"], versions=versions)
    return None


def _note_of(url: str, folder: Path) -> Path:
    return remote.note_of(f"{url}#files", folder)
