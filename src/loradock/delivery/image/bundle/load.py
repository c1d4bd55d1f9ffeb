"""Laying a bundle out: files go into a folder that appears whole or not at all, the image into the engine."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from loradock.delivery.image.bundle.archive import content
from loradock.delivery.image.bundle.manifest import IMAGE, IMAGE_MEMBER, Manifest, Member
from loradock.delivery.image.bundle.verify import Progress, index, opened, verify
from loradock.errors import DiskFull, EnvironmentUnfit, NotWritable
from loradock.files import regular, staged
from loradock.text.amounts import free_text, needed_text

if TYPE_CHECKING:
    from docker import DockerClient

BLOCK_BYTES = 4096
SMALL_BYTES = 1 << 24


class Layout:
    """Files in the making: takes the bytes of members, one member after another; a context manager."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Make every file, so that empty ones are there too."""
        self._folder = folder
        self._file: BinaryIO | None = None
        self._path = ""
        for member in manifest.members:
            if not member.path.startswith(f"{IMAGE}/"):
                file = folder / member.path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(exist_ok=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def take(self, path: str, chunk: bytes) -> None:
        """The next bytes of a member; the image's are left where they are."""
        if path.startswith(f"{IMAGE}/"):
            return
        if path != self._path:
            if self._file:
                self._file.close()
            self._path, self._file = path, (self._folder / path).open("r+b", buffering=0)
        assert self._file
        remaining = memoryview(chunk)
        while remaining:
            remaining = remaining[self._file.write(remaining) or 0 :]


def lay_out(path: Path, folder: Path, *, expect: str | None = None, progress: Progress | None = None) -> Manifest:
    """Verify the bundle, and put lock, model and data below a new or empty folder. Of a bad one nothing is left."""
    folder = folder.absolute()
    _require_free(folder)
    with opened(path) as file:
        manifest, _ = index(file, path)
    _require_room(folder, manifest)
    with staged.folder(folder) as place, Layout(place, manifest) as layout:
        verify(path, expect=expect or manifest.digest, sink=layout.take, progress=progress)
    return manifest


def holds(folder: Path, path: Path) -> bool:
    """Whether a folder is that of a bundle: each member is a plain file of its size, and a small one of its bytes.

    False where nothing is there.
    """
    if not folder.exists():
        return False
    with opened(path) as file:
        manifest, _ = index(file, path)
    return all(_is_same(folder / member.path, member) for member in manifest.members if not _is_image(member))


def _is_image(member: Member) -> bool:
    return member.path.startswith(f"{IMAGE}/")


def _is_same(file: Path, member: Member) -> bool:
    if not file.is_file() or file.stat().st_size != member.size_bytes:
        return False
    return member.size_bytes > SMALL_BYTES or hashlib.sha256(regular.read(file)).hexdigest() == member.sha256


def _require_free(folder: Path) -> None:
    staged.refuse_existing(folder)
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise NotWritable(
            f"cannot write in {folder.parent}", hint="--output a folder in one that this user may write to"
        )


def _require_room(folder: Path, manifest: Manifest) -> None:
    members_wanted = [member for member in manifest.members if not member.path.startswith(f"{IMAGE}/")]
    need_bytes = sum(member.size_bytes + BLOCK_BYTES for member in members_wanted)
    free_bytes = shutil.disk_usage(folder.parent).free
    if need_bytes > free_bytes:
        raise DiskFull(
            f"its files take {needed_text(need_bytes)}, and {folder.parent} has {free_text(free_bytes)} free",
            hint="--output a folder on another disk",
        )


def load_image(client: DockerClient, path: Path) -> str:
    """Give the image, verified before, to the engine; its id there. EnvironmentUnfit where the engine refuses it."""
    from docker.errors import DockerException

    with opened(path) as file:
        _, places = index(file, path)

        def chunks() -> Iterator[bytes]:
            yield from content(file, places[IMAGE_MEMBER])

        try:
            loaded = client.images.load(cast(Any, chunks()))  # requests sends what is iterated over
        except (OSError, DockerException) as failure:
            raise EnvironmentUnfit(
                f"the engine did not take the image: {failure}", hint="docker system df; is its disk full?"
            ) from failure
    return str(loaded[0].id)
