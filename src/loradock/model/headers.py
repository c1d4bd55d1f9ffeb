"""Shapes of a model's weights from the headers of its safetensors files, without reading a weight."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


def shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} over all files; one that is not a safetensors file counts as empty. Raises OSError."""
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        if file.suffix == ".safetensors":
            found |= _of_file(file)
    return found


def _of_file(file: Path) -> dict[str, tuple[int, ...]]:
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if length + 8 > file.stat().st_size:
            return {}
        try:
            header = json.loads(stream.read(length))
            return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}


def embedding(found: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the input embedding (vocabulary x hidden), or None where no known name is among the tensors."""
    return next((shape for name, shape in found.items() if name.endswith(EMBEDDINGS)), None)


def linears(found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """{layer: (rows, columns)} of what an adapter can be put on: weights of two dimensions but embeddings and head."""
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in found.items()
        if name.endswith(".weight") and len(shape) == 2 and not name.endswith((*EMBEDDINGS, *HEADS, "wpe.weight"))
    }
