"""Frozen matrices: whole, or NF4 and made dense for the time of a product, or kept dense from the first one on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bitsandbytes
import torch
from bitsandbytes import functional
from bitsandbytes.backends.cuda import ops as on_cuda
from bitsandbytes.nn import Linear4bit

from loradock.catalog.storages import NF4
from loradock.model.experts.storage import SCALES, NF4Experts
from loradock.training.backends.fast.families.parts import Unfit
from loradock.training.backends.fast.kernels import launch


class Dequantise:
    """bitsandbytes' kernel for GPUs, launched as a Triton kernel is: its operator costs the host thrice as much."""

    def __getitem__(self, _: tuple[int, ...]) -> Any:
        """Ready to be called with its arguments; it finds its grid itself."""
        return on_cuda._dequantize_4bit_impl


DEQUANTISE = Dequantise()
KNOWN_BITSANDBYTES = "0.50."
"""Whose kernel is launched directly; another version's operator is called."""


class DenseRoom:
    """Memory for one matrix that is made dense on a GPU, which all weights of a model share.

    The stream orders the products that read it. A tensor for each product would leave holes in the allocator's
    segments, which tensors that are kept then fill: 1 to 6 % more memory (docs/memory.md).
    """

    def __init__(self) -> None:
        self.elements = 0
        self.room: torch.Tensor | None = None

    def matrix(self, shape: torch.Size, *, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A matrix of this shape without content, on the device of `like`, until the next one is asked for."""
        if self.room is None or self.room.dtype != dtype:
            self.room = None  # before the next one is there
            self.room = like.new_empty(self.elements, dtype=dtype)
        return self.room[: shape.numel()].view(shape)

    def release(self) -> None:
        """Give the memory back; the next matrix takes it again."""
        self.room = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """A matrix in 4 bit: its packed numbers, and the float32 scale of each block."""

    numbers: torch.Tensor
    scales: torch.Tensor
    shape: torch.Size
    blocksize: int
    quant_type: str

    @property
    def is_launched(self) -> bool:
        """Whether bitsandbytes' kernel is launched directly."""
        return self.numbers.is_cuda and bitsandbytes.__version__.startswith(KNOWN_BITSANDBYTES)

    def filled(self, dense: torch.Tensor) -> torch.Tensor:
        """The matrix, written to `dense`."""
        arguments = (self.numbers, self.scales, self.blocksize, self.quant_type, dense.dtype, dense)
        launch.launch(DEQUANTISE, (), *arguments)
        return dense

    def made(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix, in memory of its own."""
        arguments = (self.numbers, self.scales, self.blocksize, self.quant_type, self.shape, dtype)
        return torch.ops.bitsandbytes.dequantize_4bit(*arguments)


class FrozenWeight:
    """The weights of frozen linear layers that read the same input, one below the other: [sum of out, in].

    So all of them are made dense at once, and one product serves them all. The layers' own weights become views of the
    stack. The scales of NF4 blocks are themselves quantised (double quantisation); they are expanded once, which takes
    half a bit a weight and saves two kernels at every use. The values are bitsandbytes' own, bit for bit. Raises Unfit
    where some of the layers are quantised, or quantised otherwise.
    """

    def __init__(self, modules: Sequence[Any], room: DenseRoom) -> None:
        self.kept: torch.Tensor | None = None
        self.room = room
        self.is_quantised = all(isinstance(module, Linear4bit) for module in modules)
        if not self.is_quantised:
            if any(isinstance(module, Linear4bit) for module in modules):
                raise Unfit("some layers with a common input are NF4 and others are not")
            self.kept = stacked(modules)
            self.shape = self.kept.shape
            return
        states = [module.weight.quant_state for module in modules]
        kinds = {(state.blocksize, state.quant_type, state.shape[1]) for state in states}
        if len(kinds) > 1 or (len(states) > 1 and any(state.shape.numel() % state.blocksize for state in states)):
            raise Unfit("layers with a common input are not quantised in blocks of one kind")
        blocksize, quant_type, width = kinds.pop()
        self.shape = torch.Size((sum(state.shape[0] for state in states), width))
        self.packed = Packed(
            numbers=stacked(modules),
            scales=torch.cat([expanded(state) for state in states]),
            shape=self.shape,
            blocksize=blocksize,
            quant_type=quant_type,
        )
        self.is_launched = self.packed.is_launched
        room.elements = max(room.elements, self.shape.numel())

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix in this dtype; to be used before the next one of the model is asked for, not kept."""
        if self.kept is not None and (self.kept.dtype == dtype or not self.is_quantised):
            return self.kept.to(dtype)
        if self.is_launched:
            return self.packed.filled(self.room.matrix(self.shape, like=self.packed.numbers, dtype=dtype))
        return self.packed.made(dtype)

    def keep(self, dtype: torch.dtype | None) -> None:
        """Keep the dense matrix in this dtype from now on, or none; the packed one stays where it is."""
        if not self.is_quantised:
            return
        self.kept = None  # before the next one is there
        if dtype and self.is_launched:
            self.kept = self.packed.filled(self.packed.numbers.new_empty(self.shape, dtype=dtype))
        elif dtype:
            self.kept = self.packed.made(dtype)


class FrozenExperts:
    """One matrix of every expert of a layer, [experts, out, in]: one expert at a time is dense, or all are kept so.

    Scales that are themselves quantised are expanded once, as those of `FrozenWeight`.
    """

    def __init__(self, weights: torch.Tensor, room: DenseRoom) -> None:
        self.room = room
        self.shape = weights.shape[1:]
        self.packed: list[Packed] = []
        self.kept: list[torch.Tensor] = []
        if isinstance(weights, NF4Experts):
            self.packed = [packed_expert(weights, expert) for expert in range(len(weights))]
            room.elements = max(room.elements, self.shape.numel())
        else:
            self.kept = list(weights.detach().unbind(0))
        self.is_launched = bool(self.packed) and self.packed[0].is_launched

    def dense(self, expert: int, dtype: torch.dtype) -> torch.Tensor:
        """The matrix of one expert in this dtype; to be used before the next one of the model is asked for."""
        if self.kept and (self.kept[expert].dtype == dtype or not self.packed):
            return self.kept[expert].to(dtype)
        packed = self.packed[expert]
        if self.is_launched:
            return packed.filled(self.room.matrix(self.shape, like=packed.numbers, dtype=dtype))
        return packed.made(dtype)

    def keep(self, dtype: torch.dtype | None) -> None:
        """Keep all matrices dense in this dtype from now on, or none; the packed ones stay where they are."""
        if not self.packed:
            return
        self.kept = []  # before the next ones are there
        if dtype:
            self.kept = [each.made(dtype) for each in self.packed]


def packed_expert(weights: NF4Experts, expert: int) -> Packed:
    """One expert's matrix as it lies in the layer's storage."""
    state = weights.state(expert)
    return Packed(
        numbers=weights.packed[expert].unsqueeze(-1),
        scales=expanded(state),
        shape=weights.shape[1:],
        blocksize=SCALES.block,
        quant_type=NF4.name,
    )


def stacked(modules: Sequence[Any]) -> torch.Tensor:
    """The storage of the layers' weights, one after the other along the first axis; theirs become views of it."""
    if len(modules) == 1:
        return modules[0].weight.data
    whole = torch.cat([module.weight.data for module in modules])
    first = 0
    for module in modules:
        stop = first + module.weight.shape[0]
        module.weight.data = whole[first:stop]
        first = stop
    return whole


def expanded(state: Any) -> torch.Tensor:
    """The float32 scale of each block."""
    if not state.nested:
        return state.absmax
    return functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
