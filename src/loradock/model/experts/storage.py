"""Experts' weights in NF4: one tensor that is [experts, rows, columns] to all who ask, and 4 bits a weight in memory.

Each expert is quantised by itself, as a linear layer of its shape would be, by bitsandbytes' own kernels, so that one
expert can be dequantised without the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import torch
from bitsandbytes import functional

from loradock.catalog.storages import NF4, NF4_SCALES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SCALES = NF4_SCALES
PARTS = ("packed", "scales", "outer", "offset", "code")


class NF4Experts(torch.Tensor):
    """Weights [experts, rows, columns] in NF4; its dtype is that of the products, its memory that of its parts.

    `packed`: uint8 [experts, weights / 2]. `scales`: float32 [experts, blocks], or with double quantisation uint8 codes
    of these, of which `outer` float32 [experts, blocks / 256] are the scales, `code` [256] the values and `offset`
    [experts] the mean that was taken off. Only detaching, moving and `expert` are defined: any other use raises
    TypeError, so that no operator of torch ever takes the packed numbers, or all experts in 16 bit, unasked.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    outer: torch.Tensor | None
    offset: torch.Tensor | None
    code: torch.Tensor | None

    @classmethod
    def of_parts(cls, parts: Mapping[str, torch.Tensor | None], *, shape: Sequence[int], dtype: torch.dtype) -> Self:
        """The weights that these tensors in memory are: they are shared, not copied."""
        packed: Any = parts["packed"]
        weights: Any = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=packed.device)
        for name in PARTS:
            setattr(weights, name, parts[name])
        return weights

    def __repr__(self, **_: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"NF4Experts({list(self.shape)}, {self.dtype}, {self.device}, {self.stored_bytes:,} bytes)"

    @classmethod
    def quantised(cls, weights: torch.Tensor | Iterable[torch.Tensor], *, double_quant: bool) -> Self:
        """Quantise weights [experts, rows, columns] of a 16- or 32-bit dtype, expert by expert, where they lie."""
        columns: dict[str, list[torch.Tensor]] = {name: [] for name in PARTS}
        shape, dtype = torch.Size(()), torch.float32
        for expert in weights:
            shape, dtype = expert.shape, expert.dtype
            packed, quantised = functional.quantize_4bit(
                expert.contiguous(), blocksize=SCALES.block, compress_statistics=double_quant, quant_type=NF4.name
            )
            state: Any = quantised
            columns["packed"].append(packed.reshape(-1))
            columns["scales"].append(state.absmax)
            if double_quant:
                columns["outer"].append(state.state2.absmax)
                columns["offset"].append(state.offset.reshape(()))
                columns["code"] = [state.state2.code]
        count = len(columns["packed"])
        parts = {name: torch.stack(values) if values else None for name, values in columns.items()}
        if parts["code"] is not None:
            parts["code"] = parts["code"][0]
        return cls.of_parts(parts, shape=(count, *shape), dtype=dtype)

    @property
    def parts(self) -> dict[str, torch.Tensor | None]:
        """The tensors in memory, by name."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def stored_bytes(self) -> int:
        """What the parts take in memory."""
        return sum(part.nbytes for part in self.parts.values() if part is not None)

    def state(self, expert: int) -> functional.QuantState:
        """What bitsandbytes needs besides the packed numbers to dequantise one expert."""
        scales: Any = None
        if self.outer is not None:
            scales = functional.QuantState(
                absmax=self.outer[expert], code=self.code, blocksize=SCALES.group, dtype=torch.float32
            )
        return functional.QuantState(
            absmax=self.scales[expert],
            shape=self.shape[1:],
            blocksize=SCALES.block,
            quant_type=NF4.name,
            dtype=self.dtype,
            offset=None if self.offset is None else self.offset[expert],
            state2=scales,
        )

    def expert(self, expert: int) -> torch.Tensor:
        """One expert's weights [rows, columns], dequantised, in the dtype of the products."""
        return functional.dequantize_4bit(self.packed[expert].unsqueeze(-1), self.state(expert))

    def dense(self) -> torch.Tensor:
        """All experts dequantised [experts, rows, columns]."""
        return torch.stack([self.expert(expert) for expert in range(self.shape[0])])

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The same weights, their parts put through a function that moves or copies a tensor."""
        parts = {name: None if part is None else change(part) for name, part in self.parts.items()}
        return self.of_parts(parts, shape=self.shape, dtype=self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.mapped(torch.clone)
        return torch.nn.Parameter(copied, requires_grad=False) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func is aten.detach.default:
            return args[0].mapped(torch.detach)
        if func is aten._to_copy.default and kwargs.get("dtype", args[0].dtype) == args[0].dtype:
            return args[0].mapped(lambda part: part.to(device=kwargs.get("device")))
        raise TypeError(f"experts in NF4 are multiplied expert by expert, and {func} is not defined for them")
