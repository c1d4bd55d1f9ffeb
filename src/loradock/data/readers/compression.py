"""Compressed streams: .gz and .zst, whole or in several parts, with a cut or corrupt one told apart from the end."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from loradock.data.readers.base import CHUNK_BYTES, Damaged

_INPUT_BYTES = 8 * 2**10
"""Fed at a time: what 8 KiB can swell to is bounded, so a bomb cannot fill the memory."""


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _zstandard() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


SUFFIXES: dict[str, Callable[[], Any]] = {".gz": _gzip, ".zst": _zstandard}


class _Decompressed(io.RawIOBase):
    """The plain bytes of a compressed file; raises `Damaged` where it is cut short or corrupt."""

    def __init__(self, file: BinaryIO, part: Callable[[], Any]) -> None:
        self._file, self._part = file, part
        self._decompressor: Any = None
        self._input, self._output = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._output:
            if not self._input:
                self._input = self._file.read(_INPUT_BYTES)
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
        except Exception as error:
            if isinstance(error, zlib.error) or type(error).__module__.startswith("zstandard"):
                raise Damaged(f"the compressed file is corrupt: {error}") from error
            raise
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
