"""A file of texts to a file of vectors, by windows of rows: neither has to fit in memory. Whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.lib import format as npy

from loradock.data.formats.fields import RowError
from loradock.data.pairs.preparer import Document
from loradock.data.rows import Rows
from loradock.errors import StorageError
from loradock.files import staged
from loradock.use.embedding.embedder import WINDOW_ROWS, Embedder, Kind, Progress

OPTION = "--column"
"""Of the command line: which column holds the text."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """What was written: rows, numbers of a row, tokens that were embedded, texts that were cut to the length."""

    rows: int
    width: int
    tokens: int
    cut: int


def checked(file: Path, *, column: str) -> int:
    """How many texts there are. DataError with every bad row, and what reading raises."""
    return sum(1 for _ in Rows(file).texts(column, option=OPTION))


def embed_file(
    embedder: Embedder,
    file: Path,
    output: Path,
    *,
    rows: int,
    column: str,
    instruction: str,
    kind: Kind,
    is_unit: bool = True,
    progress: Progress | None = None,
) -> Embedded:
    """Write numpy float32 [rows, width] to `output`: row i is the vector of row i of `file`.

    `rows` is how many `checked` found. Raises DataError with every bad row, what reading raises, Locked, DiskFull,
    NotWritable or StorageError; then `output` is as it was.
    """
    count = tokens = cut = 0
    with staged.file(output, replaces=True) as place, place.open("wb") as stream:
        _write_header(stream, rows=rows, width=embedder.width)
        for window in _windows(embedder, Rows(file), column=column, instruction=instruction, kind=kind):
            base = count

            def counted(number: int, base: int = base) -> None:
                if progress:
                    progress(base + number)

            stream.write(embedder.vectors(window, is_unit=is_unit, progress=counted).tobytes())
            count += len(window)
            tokens += sum(len(text.ids) for text in window)
            cut += sum(text.is_cut for text in window)
        if count != rows:
            raise StorageError(f"{file} changed while it was read", hint="run the same command again")
    return Embedded(rows=rows, width=embedder.width, tokens=tokens, cut=cut)


def _windows(embedder: Embedder, rows: Rows, **stream: Any) -> Iterator[list[Document]]:
    """Documents in the order of the file, window by window. DataError for one whose instruction is too long."""
    window: list[Document] = []
    column = stream.pop("column")
    for row, text in rows.texts(column, option=OPTION):
        try:
            window.append(embedder.document(text, **stream))
        except RowError as error:
            rows.refuse(row.file, row.line, str(error))
            rows.check()
        if len(window) == WINDOW_ROWS:
            yield window
            window = []
    if window:
        yield window


def _write_header(stream: BinaryIO, *, rows: int, width: int) -> None:
    described = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    npy.write_array_header_1_0(stream, described)
