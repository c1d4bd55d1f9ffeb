"""Laying a bundle out: files go into a folder that appears whole or not at all, the image into the engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from loradock.delivery.image.bundle.archive import content
from loradock.delivery.image.bundle.manifest import IMAGE, IMAGE_MEMBER, Manifest
from loradock.delivery.image.bundle.verify import Progress, index, opened, verify
from loradock.errors import DiskFull, EnvironmentUnfit, NotWritable, UsageError, storage_error
from loradock.files import atomic_io
from loradock.text.amounts import free_text, needed_text

if TYPE_CHECKING:
    from docker import DockerClient

BLOCK_BYTES = 4096


class Layout:
    """A folder in the making beside its place: takes the bytes of members, one member after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staged = folder.with_name(f".{folder.name}.{os.getpid()}")
        self._file: BinaryIO | None = None
        self._path = ""
        self.staged.mkdir()

    def begin(self, manifest: Manifest) -> None:
        """Make every file, so that empty ones are there too."""
        for member in manifest.members:
            if not member.path.startswith(f"{IMAGE}/"):
                file = self.staged / member.path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(exist_ok=False)

    def take(self, path: str, chunk: bytes) -> None:
        """The next bytes of a member; the image's are left where they are."""
        if path.startswith(f"{IMAGE}/"):
            return
        if path != self._path:
            self._close()
            self._path, self._file = path, (self.staged / path).open("r+b", buffering=0)
        assert self._file
        rest = memoryview(chunk)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]

    def _close(self) -> None:
        if self._file:
            os.fsync(self._file.fileno())
            self._file.close()
        self._file = None

    def finish(self) -> None:
        """Flush, and give the folder its name."""
        self._close()
        for folder, _, _ in os.walk(self.staged):
            atomic_io.sync_folder(Path(folder))
        self.staged.rename(self.folder)  # takes the place of an empty folder, and of nothing else
        atomic_io.sync_folder(self.folder.parent)

    def drop(self) -> None:
        """Take away what was not finished."""
        if self._file:
            self._file.close()
            self._file = None
        shutil.rmtree(self.staged, ignore_errors=True)


def lay_out(path: Path, folder: Path, *, expect: str | None = None, progress: Progress | None = None) -> Manifest:
    """Verify the bundle, and put lock, model and data below a new or empty folder. Of a bad one nothing is left."""
    folder = folder.absolute()
    _require_free(folder)
    with opened(path) as file:
        manifest, _ = index(file, path)
    _require_room(folder, manifest)
    with ExitStack() as last:
        try:
            layout = Layout(folder)
            last.callback(layout.drop)
            layout.begin(manifest)
            verify(path, expect=expect or manifest.digest, sink=layout.take, progress=progress)
            layout.finish()
        except OSError as failure:
            raise storage_error(failure, folder) from failure
    return manifest


def _require_free(folder: Path) -> None:
    if folder.is_mount():  # a folder that appears whole cannot take its place
        raise UsageError(f"{folder} is the root of a volume", hint=f"name a new folder in it: --output {folder}/bundle")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", hint="name a new folder with --output")
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise NotWritable(
            f"cannot write in {folder.parent}", hint="--output a folder in one that this user may write to"
        )


def _require_room(folder: Path, manifest: Manifest) -> None:
    wanted = [member for member in manifest.members if not member.path.startswith(f"{IMAGE}/")]
    need_bytes = sum(member.size_bytes + BLOCK_BYTES for member in wanted)
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
