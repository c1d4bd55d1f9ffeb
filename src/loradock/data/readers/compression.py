"""Compressed streams: .gz and .zst, whole or in several parts, with a cut or corrupt one told apart from the end."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from loradock.data.readers.base import CHUNK_BYTES, Damaged, Expansion

_INPUT_BYTES = 2**10
"""Fed at a time: what 1 KiB can swell to is bounded (zstd: 32 MiB), so a bomb cannot fill the memory."""


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _zstandard() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


SUFFIXES: dict[str, Callable[[], Any]] = {".gz": _gzip, ".zst": _zstandard}


class _Decompressed(io.RawIOBase):
    """The plain bytes of a compressed file; raises `Damaged` where it is cut short, corrupt, or swells too much."""

    def __init__(self, file: BinaryIO, part: Callable[[], Any]) -> None:
        self._file, self._part = file, part
        self._decompressor: Any = None
        self._input, self._output = b"", memoryview(b"")
        self._expansion = Expansion()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._output:
            if not self._input:
                self._input = self._file.read(_INPUT_BYTES)
                self._expansion.packed_bytes += len(self._input)
            if not self._input:
                if self._decompressor is not None:
                    raise Damaged("the compressed file is cut short")
                return 0
            self._step()
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _step(self) -> None:
        if self._decompressor is None:
            self._input = self._input.lstrip(b"\0")
            if not self._input:
                return
            self._decompressor = self._part()
        try:
            self._output = memoryview(self._decompressor.decompress(self._input))
        except Exception as error:  # zstandard's error has a module of its own, which is only imported for such files
            is_of_file = isinstance(error, (zlib.error, MemoryError))
            if is_of_file or type(error).__module__.startswith("zstandard"):
                raise Damaged(f"the compressed file is corrupt: {error or 'no memory for it'}") from error
            raise
        if problem := self._expansion.grown(len(self._output)):
            raise Damaged(f"{problem} (unpack the file and name what comes out)")
        self._input = b""
        if self._decompressor.eof:
            self._input = self._decompressor.unused_data
            self._decompressor = None

    def close(self) -> None:
        self._file.close()
        super().close()


def decompressed(file: BinaryIO, suffix: str) -> BinaryIO:
    """The plain bytes of `file`, compressed as `suffix` (.gz or .zst) says; closes it when closed."""
    return io.BufferedReader(_Decompressed(file, SUFFIXES[suffix]), CHUNK_BYTES)
