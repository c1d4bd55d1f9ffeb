"""Families of decoders. To add one: a module with `parts`, and its line in `catalog/families`."""

from __future__ import annotations

import importlib
from typing import Any

from loradock.catalog.families import BY_DECODER
from loradock.training.backends.fast.families.base import decoder_of
from loradock.training.backends.fast.families.parts import ModelParts, Unfit


def read(model: Any, *, positions: int) -> ModelParts:
    """The parts of a loaded model (a PeftModel); `positions` is the longest document in tokens.

    Raises Unfit where no family serves it, or this very model has something that the fast engine does not compute.
    """
    decoder = type(decoder_of(model)).__name__
    if decoder not in BY_DECODER:
        raise Unfit(f"no family serves {decoder}")
    family = importlib.import_module(f"{__name__}.{BY_DECODER[decoder].module}")
    return family.parts(model, positions=positions)
