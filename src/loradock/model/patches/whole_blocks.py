"""Let bitsandbytes 0.50 dequantise right on a CPU where the rows of a 4-bit weight are not a whole number of blocks.

Its kernel for CPUs starts a new block with each row where the width is a multiple of 16 and none of 64, while NF4's
blocks of 64 continue from row to row: a 64 x 160 weight came back with errors of 1.5 to 2.1 standard deviations. Asked
for rows of one block each, it computes the same weights right; see docs/decisions/004-rows-of-whole-blocks.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

NAME = "bitsandbytes::dequantize_4bit"


def apply(model: Any) -> int:
    """Fix the operator where a 4-bit linear on the CPU needs it; returns how many layers do."""
    from bitsandbytes.nn import Linear4bit

    from loradock.catalog.storages import NF4_SCALES
    from loradock.model.experts import layout
    from loradock.model.experts.storage import NF4Experts

    layers = [module for module in model.modules() if isinstance(module, Linear4bit) and is_concerned(module)]
    experts = [
        matrices
        for matrices in layout.matrices(model)
        if isinstance(matrices.parameter, NF4Experts)
        and matrices.parameter.device.type == "cpu"
        and matrices.parameter.shape[-1] % NF4_SCALES.block
    ]
    if layers or experts:
        fix()
    return len(layers) + len(experts)


def is_concerned(layer: Any) -> bool:
    """True for a quantised layer on the CPU whose rows are not a whole number of blocks."""
    state = getattr(layer.weight, "quant_state", None)
    return state is not None and layer.weight.device.type == "cpu" and bool(state.shape[-1] % state.blocksize)


@cache
def fix() -> Any:
    """Put an operator before bitsandbytes' own that asks it for whole blocks; it lasts as long as the process."""
    import torch

    kernel = torch.library.get_kernel(NAME, "CPU")

    def dequantise(
        keys: Any,
        packed: torch.Tensor,
        scales: torch.Tensor,
        blocksize: int,
        kind: str,
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The dense weight of this shape; see bitsandbytes' operator of the same arguments."""
        count = math.prod(shape)
        if not shape[-1] % blocksize:
            return kernel.call_boxed(keys, packed, scales, blocksize, kind, shape, dtype)
        rows = (count // blocksize, blocksize) if count % blocksize == 0 else (1, count)
        return kernel.call_boxed(keys, packed, scales, blocksize, kind, rows, dtype).reshape(tuple(shape))

    library = torch.library.Library("bitsandbytes", "IMPL")
    with warnings.catch_warnings():  # torch says that an operator is replaced, which is what is meant
        warnings.simplefilter("ignore", UserWarning)
        library.impl("dequantize_4bit", dequantise, "CPU", with_keyset=True, allow_override=True)
    return library
