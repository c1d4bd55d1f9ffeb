"""Whether weight files hold a whole model: every tensor of the architecture, in its shape."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError, Problem
from loradock.files.foreign import reading
from loradock.model import headers, made_dense, prequantised, source

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

SAFE = "convert it to safetensors: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
LAYER = re.compile(r"(.+?)\.(\d+)\.(.+)")
SHOWN = 12
"""Tensors that an error names."""


def check(base: BaseModel) -> tuple[str, ...]:
    """Compare the files' tensors with those of the architecture, by names and shapes: no weight is read.

    transformers does it, on the meta device: renamed, fused and tied tensors count as it loads them. Raises ModelError
    with every tensor that is missing or of another shape, and with layers that config.json does not count; returns the
    names of those that the model has no use for, parts aside that are left out of it (`architecture.left_out`).
    """
    import torch

    model: Any = source.on_meta(base)
    found_shapes = shapes(base.weight_files)
    if prequantised.is_nf4(base.config):
        found_shapes = prequantised.dense_shapes(found_shapes, prequantised.packed(base.weight_files))
    else:
        found_shapes = made_dense.dense_shapes(found_shapes, made_dense.contents_of(base.config, base.weight_files))
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in found_shapes.items()}
    with quiet(), source.reading_config(base.directory, "describes a model that transformers cannot build"):
        _, loading = type(model).from_pretrained(
            None,
            config=prequantised.plain(base.config),
            state_dict=tensors,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    wrong = [f"{name} is missing" for name in sorted(loading["missing_keys"])]
    for name, has, expected_shape in sorted(loading["mismatched_keys"]):
        wrong.append(f"{name} is {list(has)}, and config.json asks for {list(expected_shape)}")
    if wrong:
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        raise ModelError(
            f"{base.directory} does not hold the whole model: of {type(model).__name__}'s tensors {len(wrong)} are not "
            "there, or of another shape",
            hint="copy the whole directory again; a classifier or an encoder is not a causal language model",
            problems=[Problem(what=what) for what in [*wrong[:SHOWN], *more]],
        )
    unused = tuple(sorted(loading["unexpected_keys"]))
    if more := whole_layers(unused, like=model.state_dict()):
        raise ModelError(
            f"{base.directory} holds more layers than its config.json says: {', '.join(more[:SHOWN])} would be left "
            "out, and what is trained would not be that model",
            hint=f"copy config.json again, too; it counts the layers: grep layer {base.directory}/config.json",
        )
    return unused


def whole_layers(unused: Iterable[str], *, like: Iterable[str]) -> tuple[str, ...]:
    """Numbered layers of which every tensor is without use, and that are made as a layer of the model is.

    They have as many modules, one at most by another name: a hybrid's mixer. One for multi-token prediction has more.
    """
    modules = {place: {name.split(".")[0] for name in names} for place, names in numbered(like).items()}
    extra = {place: {name.split(".")[0] for name in names} for place, names in numbered(unused).items()}
    return tuple(
        f"{path}.{number}"
        for (path, number), names in sorted(extra.items())
        if (path, number) not in modules
        and any(
            path == module and len(names) == len(known) and len(names - known) <= 1
            for (module, _), known in modules.items()
        )
    )


def numbered(names: Iterable[str]) -> dict[tuple[str, int], set[str]]:
    """{(path of a list of layers, number): the names of its tensors below that}, by the first number of each name."""
    layers: dict[tuple[str, int], set[str]] = {}
    for name in names:
        if place := LAYER.match(name):
            layers.setdefault((place[1], int(place[2])), set()).add(place[3])
    return layers


def shapes(of: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} over weight files of either kind. Raises ModelError for a pickled file that torch refuses."""
    shapes_read: dict[str, tuple[int, ...]] = {}
    for file in of:
        shapes_read |= pickled(file) if file.suffix == ".bin" else headers.shapes([file])
    return shapes_read


def pickled(file: Path) -> dict[str, tuple[int, ...]]:
    """{tensor: shape} of a pickle, in which torch looks for tensors and nothing else. ModelError where it refuses."""
    import torch

    with reading(file, "is a pickle that torch does not read", hint=SAFE):
        try:
            content = torch.load(file, map_location="meta", mmap=True, weights_only=True)
        except pickle.UnpicklingError as error:  # torch's own words advise to run what it found
            raise ValueError("it holds more than tensors, or is broken; what a pickle holds is run") from error
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not tensors by their names")
        return {str(name): tuple(tensor.shape) for name, tensor in content.items()}


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
