"""The files that hold a base's weights: one answer for the loader, the hash and the record."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from loradock.errors import Problem

SINGLE = ("model.safetensors", "pytorch_model.bin")
"""In the order in which transformers looks for them, each before its index."""


def files(directory: Path) -> tuple[Path, ...]:
    """The weight files that are there, without a judgement; empty where it is unclear which they are."""
    return resolve(directory, [])


def resolve(directory: Path, problems: list[Problem]) -> tuple[Path, ...]:
    """The files that transformers loads: a whole file, else those of an index. What is wrong goes to `problems`."""
    for name in SINGLE:
        whole, index = directory / name, directory / f"{name}.index.json"
        if not index.is_file():
            if whole.is_file():
                return (whole,)
            continue
        named = shards(index, problems)
        if whole.is_file() and named and named != (whole,):
            what = f"both {name} and an index of other files: which hold the weights is unclear; remove one"
            problems.append(Problem(what=what, file=str(directory)))
            return ()
        return named
    others = ", ".join(sorted(file.name for file in directory.glob("*.safetensors")))
    what = "no weights (model.safetensors, or model.safetensors.index.json and its shards)"
    problems.append(Problem(what=f"{what}, but {others}" if others else what, file=str(directory)))
    return ()


def shards(index: Path, problems: list[Problem]) -> tuple[Path, ...]:
    """The files that an index names and that are there: names in its own directory."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if name != Path(name).name]
    except (ValueError, KeyError, TypeError, AttributeError):
        problems.append(Problem(what="not a weight index", file=str(index)))
        return ()
    if not names:
        problems.append(Problem(what="names no file", file=str(index)))
    elsewhere = "which is not a file in the same directory"
    problems += [Problem(what=f"names {name}, {elsewhere}", file=str(index)) for name in outside]
    found = [index.with_name(name) for name in names if name not in outside]
    problems += [Problem(what=f"shard {file.name} is missing", file=str(index)) for file in found if not file.is_file()]
    return tuple(file for file in found if file.is_file())


def safetensors_problem(file: Path) -> str | None:
    """What is wrong with a safetensors file by its header and size, or None. Reads the header only."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length + 8 > size:
            return f"is truncated or not a safetensors file ({size} bytes)"
        try:
            header = json.loads(stream.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "has no safetensors header"
    expected = 8 + length + end
    return None if expected == size else f"is truncated: {size} of {expected} bytes"
