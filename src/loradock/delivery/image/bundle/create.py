"""Making a bundle: what goes in is found and measured first, then written once, beside its place, and renamed there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from loradock import __version__
from loradock.delivery.image.bundle.archive import CHUNK_BYTES, add, archive_bytes, finish
from loradock.delivery.image.bundle.manifest import (
    DATA,
    IMAGE_MEMBER,
    LOCK_MEMBER,
    MODEL,
    NAME,
    Manifest,
    Member,
    escapes,
)
from loradock.errors import DataError, DiskFull, InputMissing, NotWritable, Problem, UsageError
from loradock.files import staged
from loradock.machine import Host
from loradock.text.amounts import free_text, needed_text

MANIFEST_SHARE_BYTES = 400
"""Of a member in the manifest, for the estimate."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of the engine: its reference, id and the bytes that it takes unpacked, which a saved one comes near."""

    reference: str
    id: str
    size_bytes: int
    chunks: Callable[[], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What goes in: files by their member's path, and an image."""

    files: dict[str, Path]
    image: Image | None = None


def lock_here(host: Host) -> Path | None:
    """The lock that this installation was made from, where it is there."""
    lock_file = host.environ.get("LORADOCK_LOCK")
    lock = Path(lock_file) if lock_file else Path(__file__).parents[5] / "docker" / "requirements.lock"
    return lock if lock.is_file() else None


def gather(
    *,
    model: Path | None,
    data: Sequence[Path],
    lock: Path | None,
    image: Image | None,
    run: Mapping[str, Path] = MappingProxyType({}),
) -> Inputs:
    """Every file that goes in; `run`: those of a run by their members. InputMissing or DataError with what cannot."""
    files = dict(run)
    problems = [Problem(what=escape, file=str(file)) for path, file in files.items() if (escape := escapes(path))]
    sources = [(MODEL, model)] if model else []
    for part, source in [*sources, *((DATA, path) for path in data)]:
        root = f"{part}/{Path(os.path.realpath(source)).name}"
        paths_below = _below(source, problems)
        if not paths_below:
            problems.append(Problem(what=f"missing, or holds no file ({part})", file=str(source)))
        for relative, file in paths_below:
            member = f"{root}/{relative}" if relative else root
            if escape := escapes(member) or (f"{member!r} would be there twice" if member in files else None):
                problems.append(Problem(what=escape, file=str(file)))
            files[member] = file
    if lock:
        files[LOCK_MEMBER] = lock
    if problems:
        raise InputMissing("not everything can go into the bundle", hint="name other paths", problems=problems)
    if not files and not image:
        raise UsageError("nothing would be in the bundle", hint="--image REF, --model DIR, --data FILE, --run RUN")
    return Inputs(files=dict(sorted(files.items())), image=image)


def _below(source: Path, problems: list[Problem]) -> list[tuple[str, Path]]:
    """(path below it, file) of every plain file but hidden ones; links are followed: a hub's cache is made of them."""
    if source.is_file():
        return [("", source)]
    files: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(source, followlinks=True):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if name.startswith("."):
                continue
            if file.is_file():
                files.append((file.relative_to(source).as_posix(), file))
            else:
                problems.append(Problem(what="neither a file nor a link to one", file=str(file)))
    return files


def create(output: Path, inputs: Inputs, *, progress: Progress | None = None) -> Manifest:
    """Write the bundle; DiskFull before anything is written where it would not fit. No partial one has its name."""
    staged.refuse_existing(output, is_folder=False)
    sizes = {path: file.stat().st_size for path, file in inputs.files.items()}
    total_bytes = sum(sizes.values()) + (inputs.image.size_bytes if inputs.image else 0)
    _require_room(output, sizes, inputs)
    with staged.file(output) as place, place.open("xb") as file:
        members: list[Member] = []
        done_bytes = 0
        for path, chunks in _sources(inputs):
            size_bytes, sha256 = add(file, path, _told(chunks, path, done_bytes, total_bytes, progress))
            _require_unchanged(path, size_bytes, sizes)
            members.append(Member(path=path, size_bytes=size_bytes, sha256=sha256))
            done_bytes += size_bytes
        manifest = Manifest(
            loradock=__version__,
            members=tuple(members),
            image=inputs.image.reference if inputs.image else None,
            image_id=inputs.image.id if inputs.image else None,
        )
        add(file, NAME, [manifest.content])
        finish(file)
    return manifest


def _sources(inputs: Inputs) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Every member but the manifest, in the order of their paths."""
    sources: dict[str, Callable[[], Iterator[bytes]]] = {
        path: partial(_read, file) for path, file in inputs.files.items()
    }
    if inputs.image:
        sources[IMAGE_MEMBER] = inputs.image.chunks
    for path in sorted(sources):
        yield path, sources[path]()


def _told(
    chunks: Iterator[bytes], path: str, done_bytes: int, total_bytes: int, progress: Progress | None
) -> Iterator[bytes]:
    """The chunks, each told as it goes by; an engine may give more bytes than it announced."""
    for chunk in chunks:
        yield chunk
        done_bytes += len(chunk)
        if progress:
            progress(path, done_bytes, max(total_bytes, done_bytes))


def _read(file: Path) -> Iterator[bytes]:
    with open(file, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _require_unchanged(path: str, size_bytes: int, sizes: dict[str, int]) -> None:
    if path in sizes and size_bytes != sizes[path]:
        raise DataError(f"{path} changed while it was read", hint="let nobody write to it, and start again")


def _require_room(output: Path, sizes: dict[str, int], inputs: Inputs) -> None:
    """NotWritable or DiskFull where the bundle cannot come to be."""
    folder = output.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise NotWritable(f"cannot write in {folder}", hint="name a file in a folder that this user may write to")
    image = [(IMAGE_MEMBER, inputs.image.size_bytes)] if inputs.image else []
    need_bytes = archive_bytes([*sizes.items(), *image, (NAME, MANIFEST_SHARE_BYTES * (len(sizes) + 1))])
    free_bytes = shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        raise DiskFull(
            f"the bundle takes {needed_text(need_bytes)}, and {folder} has {free_text(free_bytes)} free",
            hint="name a file on another disk",
        )
