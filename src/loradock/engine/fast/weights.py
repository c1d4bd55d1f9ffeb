"""Frozen matrices: whole, or NF4 and made dense for the time of a product, or kept dense from the first one on."""

from __future__ import annotations

from typing import Any

import bitsandbytes
import torch
from bitsandbytes import functional
from bitsandbytes.backends.cuda import ops as on_cuda
from bitsandbytes.nn import Linear4bit

from loradock.engine.fast.kernels import launch


class Dequantise:
    """bitsandbytes' kernel for cards, launched as a Triton kernel is: its operator costs the host thrice as much."""

    def __getitem__(self, _: tuple[int, ...]) -> Any:
        """Ready to be called with its arguments; it finds its grid itself."""
        return on_cuda._dequantize_4bit_impl


DEQUANTISE = Dequantise()
KNOWN_BITSANDBYTES = "0.50."
"""Whose kernel is launched directly; another version's operator is called."""


class FrozenWeight:
    """The weight of one frozen linear layer, [out, in].

    The scales of NF4 blocks are themselves quantised (double quantisation); they are expanded once, which takes half a
    bit a weight and saves two kernels at every use. The values are those that bitsandbytes computes, bit for bit.
    """

    def __init__(self, module: Any, *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept: torch.Tensor | None = None
        self.is_quantised = isinstance(module, Linear4bit)
        if not self.is_quantised:
            self.kept = module.weight.detach().to(dtype)
            self.shape = module.weight.shape
            return
        state = module.weight.quant_state
        self.packed = module.weight.data.view(-1, 1)
        self.is_launched = self.packed.is_cuda and bitsandbytes.__version__.startswith(KNOWN_BITSANDBYTES)
        self.state = state
        self.shape = state.shape
        self.scales = state.absmax
        if state.nested:
            self.scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset

    def dense(self) -> torch.Tensor:
        """The matrix in the compute dtype; to be used at once, not kept."""
        if self.kept is not None:
            return self.kept
        state = self.state
        if self.is_launched:
            dense = self.packed.new_empty(self.shape, dtype=state.dtype)
            launch.launch(
                DEQUANTISE, (), self.packed, self.scales, state.blocksize, state.quant_type, state.dtype, dense
            )
        else:
            dense = torch.ops.bitsandbytes.dequantize_4bit(
                self.packed, self.scales, state.blocksize, state.quant_type, self.shape, state.dtype
            )
        return dense if state.dtype == self.dtype else dense.to(self.dtype)

    def keep(self) -> None:
        """Keep the dense matrix from now on; the packed one stays where it is."""
        self.kept = self.dense()
