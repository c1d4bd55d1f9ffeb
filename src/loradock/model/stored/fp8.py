"""FP8 as DeepSeek, Qwen and Mistral publish it (`quant_method: fp8`): float8_e4m3fn with a scale for each block.

Beside a weight `NAME` lies `NAME_scale_inv`, float32 or a power of two in a byte, by which its numbers are multiplied:
one for each block of `weight_block_size`, or one for the whole matrix where that is null. Some files call it otherwise
(`PATH.scale` and `PATH.qscale_weight` beside `PATH.weight`). A scale of activations, for products in FP8, is of no use
here: products are made in 16 bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loradock.errors import ModelError
from loradock.model.stored.base import Contents, Format, Header, Weight, first_names, is_block
from loradock.model.stored.scaled import AGAIN, Scaled, block_of

NUMBERS, SCALES = ("F8_E4M3", "F8_E5M2"), ("F32", "BF16", "F16", "F8_E8M0", "U8")
SCALE, WEIGHT, OTHER_SCALES = "_scale_inv", "weight", ("scale", "qscale_weight")
ACTIVATIONS = ("activation_scale", ".qscale_act")
BLOCK = (128, 128)


class Fp8(Format):
    """Matrices, and experts in one tensor or in one each."""

    method, title, python = "fp8", "FP8", "FineGrainedFP8Config(dequantize=True)"

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Experts in 4 bit beside the rest in FP8 (DeepSeek-V4) are not read."""
        if settings.get("expert_dtype", "fp8") != "fp8":
            return f"holds its experts in {settings['expert_dtype']} beside FP8, and of such files only FP8 is opened"
        block = settings.get("weight_block_size", BLOCK)
        return None if block is None or is_block(block) else f"has FP8 weights in blocks of {block!r}"

    def find(self, tensors: Mapping[str, Header], settings: Mapping[str, Any], *, dtype: str) -> Contents:
        """Each weight in FP8 with its scales."""
        block = settings.get("weight_block_size", BLOCK)
        numbers = {name for name, entry in tensors.items() if entry.dtype in NUMBERS}
        scale_of = {name: scale for name in numbers if (scale := _scale_of(name, tensors))}
        if missing := numbers - scale_of.keys():
            raise ModelError(f"weights in FP8 have no scales beside them ({SCALE}): {first_names(missing)}", hint=AGAIN)
        weights: dict[str, Weight] = {}
        for name in sorted(numbers):
            shape, scales = tensors[name].shape, tensors[scale_of[name]].shape
            weights[name] = Scaled(
                shape=shape,
                dtype=dtype,
                parts=(name, scale_of[name]),
                block=block_of(name, shape, scales, block=None if block is None else (block[0], block[1])),
            )
        unused = frozenset(name for name in tensors if name.endswith(ACTIVATIONS))
        return Contents(weights=weights, unused=unused)


def _scale_of(name: str, tensors: Mapping[str, Header]) -> str | None:
    """The tensor that holds the scales of a weight."""
    others = [f"{name.removesuffix(WEIGHT)}{other}" for other in OTHER_SCALES] if name.endswith(f".{WEIGHT}") else []
    return next((key for key in (f"{name}{SCALE}", *others) if key in tensors and tensors[key].dtype in SCALES), None)
