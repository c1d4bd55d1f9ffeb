"""Images of a few bytes, made by the engine in a second, each under a name of its own that goes with the test."""

from __future__ import annotations

import contextlib
import io
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of an image: its bytes, or where it links to."""

    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    link: str | None = None
    is_hard_link: bool = False
    mtime: int = 1_000_000_000
    attributes: Mapping[str, str] = field(default_factory=dict)


def archive(files: Mapping[str, Entry]) -> io.BytesIO:
    """The files as a tar."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in files.items():
            member = tarfile.TarInfo(path)
            member.mode, member.uid, member.mtime = entry.mode, entry.uid, entry.mtime
            member.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in entry.attributes.items()}
            if entry.link is None:
                member.size = len(entry.content)
                tar.addfile(member, io.BytesIO(entry.content))
            else:
                member.type = tarfile.LNKTYPE if entry.is_hard_link else tarfile.SYMTYPE
                member.linkname = entry.link
                tar.addfile(member)
    stream.seek(0)
    return stream


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


@contextlib.contextmanager
def small_image(
    engine: DockerClient,
    files: Mapping[str, Entry],
    *,
    instructions: str = "",
    name: str | None = None,
    base: str = "scratch",
) -> Iterator[Image]:
    """An image `FROM base` with these files and Dockerfile instructions; removed at the end."""
    name = name or unique("loradock-test")
    context = archive(
        {
            "Dockerfile": Entry(content=f"FROM {base}\nADD root.tar /\n{instructions}\n".encode()),
            "root.tar": Entry(content=archive(files).getvalue()),
        }
    )
    engine.images.build(fileobj=context, custom_context=True, tag=name, rm=True, forcerm=True, nocache=True)
    image = engine.images.get(name)
    try:
        yield image
    finally:
        with contextlib.suppress(Exception):
            engine.images.remove(name)
