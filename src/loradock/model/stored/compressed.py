"""compressed-tensors (llm-compressor): FP8 and int8 with a scale for each tensor, row, group or block; int4, packed.

Beside a weight `NAME.weight` lies `NAME.weight_scale`. Packed ones are `NAME.weight_packed`, int32 [rows, words], the
first number in the lowest bits and zero at 2**(bits - 1), beside `NAME.weight_shape`. Scales of activations
and of the cache of keys and values are of no use here: products are made in 16 bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model.stored.base import Contents, Format, Header, Weight, first_names, is_block, table
from loradock.model.stored.scaled import AGAIN, Scaled, block_of

if TYPE_CHECKING:
    import torch

FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
NUMBERS = ("F8_E4M3", "F8_E5M2", "I8")
WEIGHT, SCALE, PACKED, SHAPE = ".weight", "_scale", "_packed", "_shape"
OF_PRODUCTS = (".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale", ".input_zero_point")
ZERO_POINT, WORD_BITS = "_zero_point", 32


@dataclass(frozen=True, kw_only=True)
class Packed(Scaled):
    """Parts are int32 words, scales, and the shape."""

    bits: int

    def dense(self, *parts: torch.Tensor) -> torch.Tensor:
        """Unpacked, then as others of a scale a block. ModelError where the shape is another one."""
        import torch

        words, scales, shape = parts
        if tuple(shape.tolist()) != self.shape:
            raise ModelError(f"{self.parts[0]} is {list(self.shape)}, and {self.parts[2]} {shape.tolist()}", hint=AGAIN)
        rows, columns = self.shape
        numbers = torch.empty((rows, columns), dtype=torch.int8)
        count = WORD_BITS // self.bits
        for place in range(count):
            digits = words >> (self.bits * place) & (1 << self.bits) - 1
            numbers[:, place::count] = (digits - (1 << self.bits - 1)).to(torch.int8)
        return super().dense(numbers, scales)


class CompressedTensors(Format):
    """One kind of weights for the whole model, symmetric around zero."""

    method, title = "compressed-tensors", "compressed-tensors"
    python = "CompressedTensorsConfig(run_compressed=False)"

    def refusal(self, settings: Mapping[str, Any]) -> str | None:
        """Sparse ones, rotated ones, such with zero points, and kinds of 4-bit floating point are not read."""
        kind = settings.get("format")
        if kind not in FORMATS:
            return f"holds compressed-tensors of format {kind}, and of these {', '.join(FORMATS)} are opened"
        sparse = table(settings.get("sparsity_config")).get("format", "dense")
        if sparse != "dense":
            return f"holds compressed-tensors that are sparse ({sparse})"
        if table(settings.get("transform_config")).get("config_groups"):
            return "holds compressed-tensors that were rotated (transform_config)"
        schemes = _schemes(settings)
        if not schemes or any(scheme != schemes[0] for scheme in schemes):
            return f"holds compressed-tensors of {len(schemes)} kinds of weights, and only one kind is opened"
        if not schemes[0].get("symmetric", True):
            return "holds compressed-tensors that are not symmetric around zero"
        if not _is_known(schemes[0]):
            return f"holds compressed-tensors with scales by {schemes[0].get('strategy')!r}, which are not read"
        bits = schemes[0].get("num_bits")
        if kind == "pack-quantized" and bits not in (4, 8):
            return f"holds compressed-tensors of {bits} bits, and of packed ones 4 and 8 bits are opened"
        return None

    def find(self, tensors: Mapping[str, Header], settings: Mapping[str, Any], *, dtype: str) -> Contents:
        """Each weight with its scales."""
        scheme = _schemes(settings)[0]
        names = {name for name, entry in tensors.items() if name.endswith(WEIGHT) and entry.dtype in NUMBERS}
        names |= {name.removesuffix(PACKED) for name in tensors if name.endswith(f"{WEIGHT}{PACKED}")}
        if missing := {name for name in names if f"{name}{SCALE}" not in tensors}:
            raise ModelError(
                f"quantised weights have no scales beside them ({SCALE}): {first_names(missing)}", hint=AGAIN
            )
        if asymmetric := {name for name in names if f"{name}{ZERO_POINT}" in tensors or f"{name}_g_idx" in tensors}:
            what = f"quantised weights have zero points or groups in another order: {first_names(asymmetric)}"
            raise ModelError(what, hint="give the original 16-bit model directory")
        if strange := {name for name, entry in tensors.items() if _is_numbers(name, entry)} - names:
            what = f"quantised tensors whose scales are not known, for they are not called NAME{WEIGHT}"
            raise ModelError(f"{what}: {first_names(strange)}", hint="give the original 16-bit model directory")
        weights = {name: _weight(name, tensors, scheme, dtype=dtype) for name in sorted(names)}
        return Contents(weights=weights, unused=frozenset(name for name in tensors if name.endswith(OF_PRODUCTS)))


def _schemes(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How each group of layers has its weights."""
    groups = table(settings.get("config_groups")).values()
    return [scheme for group in groups if (scheme := table(table(group).get("weights")))]


def _is_numbers(name: str, entry: Header) -> bool:
    """Whether a tensor is in 8 bit, and no zero point of a scale."""
    return entry.dtype in NUMBERS and not name.endswith(ZERO_POINT)


def _is_known(scheme: Mapping[str, Any]) -> bool:
    """Whether it says in a known way which weights share a scale."""
    strategy, size = scheme.get("strategy"), scheme.get("group_size")
    if strategy == "group":
        return type(size) is int and size > 0
    return strategy in ("tensor", "channel") or (strategy == "block" and is_block(scheme.get("block_structure")))


def _weight(name: str, tensors: Mapping[str, Header], scheme: Mapping[str, Any], *, dtype: str) -> Weight:
    scales = tensors[f"{name}{SCALE}"].shape
    if (entry := tensors.get(f"{name}{PACKED}")) is None:
        shape = tensors[name].shape
        block = block_of(name, shape, scales, block=_block(scheme))
        return Scaled(shape=shape, dtype=dtype, parts=(name, f"{name}{SCALE}"), block=block)
    bits = int(scheme["num_bits"])
    if len(entry.shape) != 2:
        raise ModelError(f"{name}{PACKED} is {list(entry.shape)}, and no matrix", hint=AGAIN)
    shape = (entry.shape[0], entry.shape[1] * WORD_BITS // bits)
    parts = (f"{name}{PACKED}", f"{name}{SCALE}", f"{name}{SHAPE}")
    if parts[2] not in tensors:
        raise ModelError(f"{parts[0]} has no {parts[2]} beside it", hint=AGAIN)
    block = block_of(name, shape, scales, block=_block(scheme))
    return Packed(shape=shape, dtype=dtype, parts=parts, block=block, bits=bits)


def _block(scheme: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None for whole matrices or rows."""
    if scheme.get("strategy") == "group":
        return 1, int(scheme["group_size"])
    if scheme.get("strategy") == "block":
        rows, columns = scheme["block_structure"]
        return int(rows), int(columns)
    return None
