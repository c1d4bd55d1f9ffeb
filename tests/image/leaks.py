"""Looks for secrets everywhere an image or its build could have left them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import IO, cast

from loradock.delivery.image.content import Source
from loradock.delivery.image.engine import connect, image_named

CHUNK_BYTES = 1 << 20
GZIP = b"\x1f\x8b"


def scan(image: str, canaries: Sequence[str], log: str) -> list[str]:
    """Each place that holds a canary, plain or as base64: the log, history, configuration, any file of any layer.

    Layers are read one by one, so what a later layer deletes is found; gzip files are read compressed and unpacked.
    """
    needles = [needle for canary in canaries for needle in _spellings(canary)]
    hits = ["the log"] * _holds(log.encode(), needles)
    with closing(connect()) as client:
        found = image_named(client, image)
        hits += ["the history"] * _holds(json.dumps(found.history()).encode(), needles)
        hits += ["the configuration"] * _holds(json.dumps(found.attrs).encode(), needles)
        source = Source(cast("Iterable[bytes]", found.save(chunk_size=CHUNK_BYTES)))
        hits += _in_tar(source, "", needles)
        source.drain()
    return hits


def _spellings(canary: str) -> list[bytes]:
    """The canary, and what stays the same of its base64 whatever stands before it: three alignments."""
    plain = canary.encode()
    found = [plain]
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + plain)
        # The first and last characters mix with the neighbours' bits.
        found.append(encoded[(0, 2, 3)[before] : (before + len(plain)) * 8 // 6])
    return found


def _holds(data: bytes, needles: Sequence[bytes]) -> bool:
    return any(needle in data for needle in needles)


def _in_tar(stream: IO[bytes] | io.RawIOBase, place: str, needles: Sequence[bytes]) -> Iterator[str]:
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=CHUNK_BYTES) as archive:
        while (member := archive.next()) is not None:
            where = f"{place}{member.name}"
            header = f"{member.name}\n{member.linkname}\n{member.pax_headers}".encode(errors="surrogateescape")
            if _holds(header, needles):
                yield f"{where} (its name or attributes)"
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield from _in_file(content, where, needles)


def _in_file(content: IO[bytes], where: str, needles: Sequence[bytes]) -> Iterator[str]:
    start = _filled(content, 512)
    whole = io.BufferedReader(_Again(start, content), CHUNK_BYTES)
    if start[257:262] == b"ustar":
        yield from _in_tar(whole, f"{where}:", needles)
    elif start[:2] == GZIP:
        packed = content_bytes = whole.read()
        if _in_stream(io.BytesIO(packed), needles):
            yield where
        try:
            content_bytes = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error):
            return
        yield from _in_file(io.BytesIO(content_bytes), f"{where} (unpacked)", needles)
    elif _in_stream(whole, needles):
        yield where


def _filled(content: IO[bytes], size: int) -> bytes:
    start = b""
    while len(start) < size and (more := content.read(size - len(start))):
        start += more
    return start


class _Again(io.RawIOBase):
    """A stream whose start has been read already."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        super().__init__()
        self.start, self.rest = start, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        data, self.start = self.start[: len(buffer)], self.start[len(buffer) :]
        data = data or self.rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _in_stream(stream: IO[bytes], needles: Sequence[bytes]) -> bool:
    """Search chunk by chunk; a needle across two chunks is found."""
    overlap = max(map(len, needles)) - 1
    tail = b""
    while chunk := stream.read(CHUNK_BYTES):
        if _holds(tail + chunk, needles):
            return True
        tail = chunk[-overlap:]
    return False
