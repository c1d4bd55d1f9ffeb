"""The table of families. To add one: a module with a class that is a `base.Family`, its line here, and its decoders in
`catalog/families`, by which the plan decides without importing torch.
"""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import Family, ModelParts, Unfit, decoder_of
from loradock.training.backends.fast.families.gemma import Gemma
from loradock.training.backends.fast.families.llama import Llama
from loradock.training.backends.fast.families.mistral import Mistral
from loradock.training.backends.fast.families.phi3 import Phi3
from loradock.training.backends.fast.families.qwen import Qwen

FAMILIES: tuple[Family, ...] = (Llama(), Mistral(), Qwen(), Phi3(), Gemma())


def read(model: Any, *, positions: int) -> ModelParts:
    """The parts of a loaded model with its adapters. Unfit where no family serves it."""
    decoder = type(decoder_of(model)).__name__
    for family in FAMILIES:
        if decoder in family.decoders:
            return family.parts(model, positions=positions)
    raise Unfit(f"no family serves {decoder}")
