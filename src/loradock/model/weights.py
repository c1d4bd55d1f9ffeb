"""The files that hold a base's weights, and whether they hold all of it: one answer for loader, hash and record."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError, Problem
from loradock.model import headers

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

SINGLE = ("model.safetensors", "pytorch_model.bin")
"""In the order in which transformers looks for them, each before its index."""
SHOWN = 12
"""Tensors named of each kind."""


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
    problems += [Problem(what=f"names {name}, which is no file beside it", file=str(index)) for name in outside]
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


def check_whole(base: BaseModel) -> tuple[str, ...]:
    """Compare the files' tensors with those of the architecture, by names and shapes: no weight is read.

    transformers does it, on the meta device: renamed, fused and tied tensors count as it loads them. Raises ModelError
    with every tensor that is missing or of another shape; returns the names of those that the model has no use for.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(base.config, trust_remote_code=base.trust_remote_code)
        there = {name: torch.empty(shape) for name, shape in shapes(base.weight_files).items()}
    with quiet():
        _, found = type(model).from_pretrained(
            None,
            config=base.config,
            state_dict=there,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    wrong = [f"{name} is missing" for name in sorted(found["missing_keys"])]
    for name, has, wanted in sorted(found["mismatched_keys"]):
        wrong.append(f"{name} is {list(has)}, and config.json asks for {list(wanted)}")
    if wrong:
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        raise ModelError(
            f"{base.directory} does not hold the whole model: of {type(model).__name__}'s tensors {len(wrong)} are not "
            "there, or of another shape",
            hint="copy the whole directory again; a classifier or an encoder is no causal language model",
            problems=[Problem(what=what) for what in [*wrong[:SHOWN], *more]],
        )
    return tuple(sorted(found["unexpected_keys"]))


def shapes(of: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} over weight files of either kind. Raises ModelError for a pickled file that torch refuses."""
    import torch

    found = headers.shapes(of)
    for file in of:
        if file.suffix == ".bin":
            try:
                pickled = torch.load(file, map_location="meta", mmap=True, weights_only=True)
                found |= {name: tuple(tensor.shape) for name, tensor in pickled.items()}
            except (RuntimeError, ValueError, OSError, AttributeError, pickle.UnpicklingError) as error:
                first = str(error).strip().splitlines()[0]
                raise ModelError(
                    f"{file} is a pickle that torch does not read: {first}", hint="convert it to safetensors"
                ) from error
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers shows neither its progress nor its own report of what is missing."""
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
