"""Every byte of a bundle against its manifest, without a network and without an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from loradock.delivery.image.bundle.archive import Damaged, Extent, content, members
from loradock.delivery.image.bundle.manifest import LONGEST_BYTES, MADE_BY, NAME, Manifest, escapes, read
from loradock.errors import DataError, InputMissing, Problem
from loradock.files import regular
from loradock.files.system_errors import storage_error

Sink = Callable[[str, bytes], object]
"""Takes (member's path, the next of its bytes)."""
COPY_AGAIN = f"copy it again from where it was made, and compare sha256sum of both; {MADE_BY}"
Progress = Callable[[str, int, int], None]


def opened(path: Path) -> BinaryIO:
    """The file; InputMissing where it cannot be opened."""
    try:
        return regular.opened(path)
    except OSError as failure:
        raise InputMissing(
            f"{path}: {failure.strerror}", hint="name a file that loradock bundle create made"
        ) from failure


def index(file: BinaryIO, path: Path) -> tuple[Manifest, dict[str, Extent]]:
    """The manifest, and where each member lies; no content is read. DataError for what is no whole bundle.

    It names what leads out of the bundle, is twice there, missing or too much, and every member of another size.
    """
    try:
        listed = list(members(file))
    except Damaged as failure:
        raise DataError(f"{path} is damaged, or no bundle: {failure}", hint=COPY_AGAIN) from failure
    except OSError as failure:
        raise storage_error(failure, path) from failure
    problems = [Problem(what=escape) for member in listed if (escape := escapes(member.path))]
    places = {member.path: member for member in listed}
    names = [member.path for member in listed]
    problems += [
        Problem(what=f"{name!r} is there {names.count(name)} times") for name in places if names.count(name) > 1
    ]
    if problems:
        raise DataError(f"{path} is not a bundle that loradock made", hint="do not unpack it", problems=problems)
    if NAME not in places or places[NAME].size_bytes > LONGEST_BYTES:
        raise DataError(f"{path} holds no {NAME}", hint="name a file that loradock bundle create made")
    manifest = read(b"".join(content(file, places.pop(NAME))), file=str(path))
    _require_same(path, manifest, places, names)
    return manifest, places


def _require_same(path: Path, manifest: Manifest, places: dict[str, Extent], names: list[str]) -> None:
    """The members are those of the manifest, in their order and sizes."""
    expected = {member.path: member for member in manifest.members}
    problems = [Problem(what=f"{name} is missing") for name in expected if name not in places]
    problems += [Problem(what=f"{name} is not in the manifest") for name in places if name not in expected]
    problems += [
        Problem(what=f"{name} has {places[name].size_bytes} bytes, and {member.size_bytes} in the manifest")
        for name, member in expected.items()
        if name in places and places[name].size_bytes != member.size_bytes
    ]
    if not problems and names != [*sorted(expected), NAME]:
        problems = [Problem(what="its members are in another order")]
    if problems:
        raise DataError(f"{path} does not hold what its manifest says", hint=COPY_AGAIN, problems=problems)


def verify(
    path: Path, *, expect: str | None = None, sink: Sink | None = None, progress: Progress | None = None
) -> Manifest:
    """Read every byte. DataError names each member that differs; `expect` is the digest that it has to have.

    `sink` gets the content on the way, before it is known to be right: it has to be thrown away where this raises.
    """
    with opened(path) as file:
        manifest, places = index(file, path)
        if expect and manifest.digest != expect:
            raise DataError(
                f"{path} is another bundle: {manifest.digest}, not {expect}", hint="copy the one that was meant"
            )
        problems: list[Problem] = []
        done_bytes = 0
        for member in manifest.members:
            digest = hashlib.sha256()
            try:
                for chunk in content(file, places[member.path]):
                    digest.update(chunk)
                    done_bytes += len(chunk)
                    if sink:
                        sink(member.path, chunk)
                    if progress:
                        progress(member.path, done_bytes, manifest.size_bytes)
            except Damaged as failure:
                raise DataError(f"{path}: {failure}", hint=COPY_AGAIN) from failure
            if digest.hexdigest() != member.sha256:
                problems.append(Problem(what=f"{member.path} is not what went in: its sha256 differs"))
    if problems:
        raise DataError(f"{path} is damaged", hint=COPY_AGAIN, problems=problems)
    return manifest
