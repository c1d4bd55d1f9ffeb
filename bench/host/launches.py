"""Counts what a computation would launch on a card: aten kernels, bitsandbytes' kernels, Triton launches.

Made for fake tensors (torch._subclasses.FakeTensorMode, device cuda), which go through the same operators as real ones
and need no card. The rules are the same for everything that is counted:

- an aten operator that reaches the backend counts as one, whatever it launches inside (a product may split itself,
  flash attention's backward is three kernels, a `_foreach` over 448 tensors several);
- a view, an allocation and what only reads metadata count as none: see `FREE` and `is_view`;
- an operator of bitsandbytes counts as the launches of its CUDA backend: see `BITSANDBYTES`;
- a launch of a Triton kernel counts as one, and so does what the fast engine launches by the same door;
- a copy to the host that waits for the card counts as one, and as a wait: see `WAITS`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from loradock.training.backends.fast.kernels import launch

FREE = frozenset(
    {
        *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"),
        *("aten::empty_permuted", "aten::detach", "aten::detach_", "aten::lift_fresh", "aten::_unsafe_view"),
        *("aten::resize_", "aten::set_", "aten::_reshape_alias", "prim::device", "aten::is_same_size"),
        *("aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::_has_compatible_shallow_copy_type"),
    }
)
"""Operators that allocate, alias or read metadata."""

BITSANDBYTES = {
    "bitsandbytes::dequantize_blockwise": 1,
    "bitsandbytes::dequantize_4bit": 1,
    "bitsandbytes::gemm_4bit": 4,
}
"""Launches of an operator by bitsandbytes 0.50.2, backends/cuda/ops.py.

`gemm_4bit` with more than 1536 rows falls back to: scales of blocks dequantised, their offset added, weights
dequantised, and a product. (`functional.dequantize_4bit`, which PEFT's backward calls, is no operator: its parts,
`dequantize_blockwise`, aten's add and `dequantize_4bit`, are each seen.)
"""

WAITS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::item"})
"""Operators that wait for the card. An index by a mask is a nonzero and a gather."""


class Launches(TorchDispatchMode):
    """Counts while it is on. `by_name`: launches by operator or Triton kernel; `waits`: waits for the card."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.waits = 0

    @property
    def total(self) -> int:
        """All launches."""
        return self.by_name.total()

    def __enter__(self) -> Any:
        self.stand_ins = contextlib.ExitStack()
        for place, name in ((JITFunction, "run"), (launch, "launch")):
            stand_in = mock.patch.object(place, name, lambda kernel, *_, **__: self.launch(kernel))
            self.stand_ins.enter_context(stand_in)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.stand_ins.close()

    def launch(self, kernel: Any) -> None:
        """Count a launch in the place of making it."""
        is_triton = isinstance(kernel, JITFunction)
        self.by_name[f"triton::{kernel.fn.__name__}" if is_triton else "bitsandbytes::dequantize_4bit"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if name == "aten::index" and (rows := mask_among(args[1])) is not None:
            self.count("aten::nonzero")
            args = (args[0], rows)
        self.count(name, is_free=is_view(func))
        if func is torch.ops.aten.addmm.dtype_out:  # fake tensors have no right rule for it
            return (kwargs or {})["out"]
        return func(*args, **(kwargs or {}))

    def count(self, name: str, *, is_free: bool = False) -> None:
        """Add an operator by the rules above."""
        if name.startswith("bitsandbytes::"):
            self.by_name[name] += BITSANDBYTES[name]
        elif not is_free and name not in FREE:
            self.by_name[name] += 1
        self.waits += name in WAITS


def is_view(func: Any) -> bool:
    """Whether an operator's results only alias its arguments."""
    returned = [each.alias_info for each in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def mask_among(indices: Any) -> list[Any] | None:
    """The indices of an index by one mask, as if it were true everywhere, or None where there is no mask.

    Fake tensors hold no values, so they cannot tell how many are true.
    """
    masks = [each for each in indices if each is not None and each.dtype == torch.bool]
    if not masks:
        return None
    (mask,) = masks
    return [torch.empty(mask.numel(), dtype=torch.int64, device=mask.device) for _ in range(mask.dim())]
