"""The files that hold a base's weights: one answer for the loader, the hash and the record."""

from __future__ import annotations

from pathlib import Path

from loradock.errors import ModelError, Problem
from loradock.model import headers
from loradock.model.files import json_object

SINGLE = ("model.safetensors", "pytorch_model.bin")
"""In the order in which transformers looks for them, each before its index."""
INDEX_BYTES = 512 << 20
LONGEST_NAME_BYTES = 255
SHOWN_CHARACTERS = 80


def files(directory: Path) -> tuple[Path, ...]:
    """The weight files that are there, without a judgement; empty where it is unclear which they are."""
    return resolve(directory, [])


def resolve(directory: Path, problems: list[Problem]) -> tuple[Path, ...]:
    """The files that transformers loads: a whole file, else those of an index. What is wrong goes to `problems`.

    An index beside a whole file is what a model in shards left behind, unless all its shards are there too.
    """
    for name in SINGLE:
        single_file, index = directory / name, directory / f"{name}.index.json"
        if not index.is_file():
            if single_file.is_file():
                return (single_file,)
            continue
        wrong: list[Problem] = []
        missing: list[Problem] = []
        shard_files = shards(index, wrong, missing)
        if single_file.is_file() and missing and not wrong:
            return (single_file,)
        problems += [*wrong, *missing]
        if single_file.is_file() and shard_files and shard_files != (single_file,):
            what = f"both {name} and an index of other files: which hold the weights is unclear; remove one"
            problems.append(Problem(what=what, file=str(directory)))
            return ()
        return shard_files
    names = ", ".join(sorted(file.name for file in directory.glob("*.safetensors")))
    what = "no weights (model.safetensors, or model.safetensors.index.json and its shards)"
    problems.append(Problem(what=f"{what}, but {names}" if names else what, file=str(directory)))
    return ()


def shards(index: Path, problems: list[Problem], missing: list[Problem]) -> tuple[Path, ...]:
    """The files that an index names and that are there: names in its own directory. Those that are not go to `gone`."""
    try:
        weight_map = json_object(index, most_bytes=INDEX_BYTES).get("weight_map")
    except ModelError as error:
        problems += [Problem(what=f"not a weight index: {problem.what}", file=str(index)) for problem in error.problems]
        return ()
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        problems.append(
            Problem(what="not a weight index: weight_map does not name a file for each tensor", file=str(index))
        )
        return ()
    names = sorted(set(weight_map.values()))
    if not names:
        problems.append(Problem(what="names no file", file=str(index)))
    outside = [name for name in names if not is_plain(name)]
    elsewhere = "which is not a file in the same directory"
    problems += [Problem(what=f"names {shown(name)}, {elsewhere}", file=str(index)) for name in outside]
    shard_files = [index.with_name(name) for name in names if name not in outside]
    missing += [
        Problem(what=f"shard {file.name} is missing", file=str(index)) for file in shard_files if not file.is_file()
    ]
    return tuple(file for file in shard_files if file.is_file())


def is_plain(name: str) -> bool:
    """True for what can be the name of a file in a directory, without a way into another."""
    is_name = name not in ("", ".", "..") and not {"/", "\0"} & set(name)
    return is_name and name.isprintable() and len(name.encode("utf-8", "surrogatepass")) <= LONGEST_NAME_BYTES


def shown(name: str) -> str:
    """A name of a file, short and on one line."""
    text = name if name and name.isprintable() else repr(name)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def safetensors_problem(file: Path) -> str | None:
    """What is wrong with a safetensors file by its header and size, or None. Reads the header only; raises OSError."""
    try:
        headers.header(file)
    except headers.BadHeader as wrong:
        return str(wrong)
    return None
