"""The headers of safetensors files: names, shapes and places of tensors, checked, without reading a weight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from loradock.files import regular
from loradock.model.files import is_deep

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
MOST_HEADER_BYTES = 100_000_000
"""As in the library that writes and reads them."""
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of a number, by the format's names of dtypes."""


class BadHeader(Exception):
    """What is wrong with a safetensors file, to be said after its name."""


def header(file: Path) -> dict[str, Any]:
    """{tensor: its entry} of a safetensors file that is whole. Raises BadHeader, or OSError."""
    size = file.stat().st_size
    with regular.opened(file) as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length + 8 > size or length > MOST_HEADER_BYTES:
            raise BadHeader(f"is truncated or not a safetensors file ({size} bytes)")
        raw = stream.read(length)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadHeader("has no safetensors header") from error
    if not isinstance(content, dict) or is_deep(content):
        raise BadHeader("has no safetensors header")
    entries = {name: entry for name, entry in content.items() if name != "__metadata__"}
    check_entries(entries, held_bytes=size - 8 - length, length=length)
    return entries


def check_entries(entries: dict[str, Any], *, held_bytes: int, length: int) -> None:
    """BadHeader where entries are none, overlap, leave holes, or do not end with the file."""
    reached = 0
    for name, entry in sorted(entries.items(), key=_place):
        if wrong := entry_problem(entry):
            raise BadHeader(f"header entry {name[:100]!r}: {wrong}")
        begin, end = entry["data_offsets"]
        if begin != reached:
            raise BadHeader(f"header entry {name[:100]!r} begins at byte {begin:,}, the one before ends at {reached:,}")
        reached = end
    if reached != held_bytes:
        stated, expected = 8 + length + held_bytes, 8 + length + reached
        raise BadHeader(
            f"is truncated: {stated} of {expected} bytes"
            if stated < expected
            else f"has {stated - expected} bytes beyond its last tensor"
        )


def entry_problem(entry: Any) -> str | None:
    """What is wrong with the entry of a tensor by itself."""
    if not isinstance(entry, dict):
        return "not an object"
    dtype, shape, offsets = entry.get("dtype"), counts(entry.get("shape")), counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        return f"dtype is {str(dtype)[:40]!r}"
    if shape is None:
        return "shape is not a list of counts"
    if offsets is None or len(offsets) != 2:
        return "data_offsets are not two places"
    own_bytes = offsets[1] - offsets[0]
    if (bits := prod(shape) * BITS[dtype]) != 8 * own_bytes:
        return f"{dtype} of shape {shape} takes {-(-bits // 8):,} bytes, and {own_bytes:,} are its own"
    return None


def counts(value: Any) -> list[int] | None:
    """A list of whole numbers that are not negative; None for everything else."""
    is_one = isinstance(value, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in value)
    return value if is_one else None


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    """Where a tensor lies; for entries that do not say, before all others."""
    offsets = counts(item[1].get("data_offsets")) if isinstance(item[1], dict) else None
    return (offsets[0], offsets[1]) if offsets and len(offsets) == 2 else (-1, -1)


def shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} over all files; one that is not a safetensors file counts as empty. Raises OSError."""
    return {name: shape for file in files for name, shape in _of_file(file)}


def _of_file(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    if file.suffix != ".safetensors":
        return
    try:
        entries = header(file)
    except BadHeader:
        return
    for name, entry in entries.items():
        yield name, tuple(entry["shape"])


def embedding(tensor_shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the input embedding (vocabulary x hidden), or None where no known name is among the tensors."""
    return next((shape for name, shape in tensor_shapes.items() if name.endswith(EMBEDDINGS)), None)


def layers(names: Iterable[str]) -> int:
    """Decoder layers by the numbers in the names of their tensors; 0 where no known name is among them."""
    return max((int(match[1]) + 1 for name in names if (match := LAYER.search(name))), default=0)


def linears(tensor_shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """{layer: (rows, columns)} of what an adapter can be put on: weights of two dimensions but embeddings and head."""
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in tensor_shapes.items()
        if name.endswith(".weight") and len(shape) == 2 and not name.endswith((*EMBEDDINGS, *HEADS, "wpe.weight"))
    }
