"""What a storage is: how base weights are held, what they take, and what may be done with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCALE_BITS = 32
"""Of a scale that is not quantised itself: float32."""


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Weights share a scale in blocks of `block`. Quantised, it has `bits`, and `group` scales share one of float32."""

    block: int
    bits: int
    group: int

    def bits_a_weight(self, *, are_quantised: bool) -> float:
        """Of all scales, to three places, as QLoRA states them (0.5 and 0.127 for NF4)."""
        of_scale = self.bits + SCALE_BITS / self.group if are_quantised else SCALE_BITS
        return round(of_scale / self.block, 3)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How base weights are held in memory; `model/load.py` loads them so.

    `title`: what such weights are, in a sentence. `code_bits`: of a quantised weight, 0 of one in the compute dtype;
    `scales`: of its blocks, where they can be quantised too. `is_dequantised`: each product is made with the matrix
    dequantised, so that those values are what an adapter is trained on. `has_outlier_columns`: columns with large
    inputs are multiplied apart, in 16 bits, and what remains is rounded on both sides. `takes_experts`: a mixture's
    experts, which lie in one parameter a matrix, are stored so too (`model/experts`).

    `loading`: arguments of transformers' BitsAndBytesConfig. `dense_price`: what 16 bits in its place cost.
    `merge_why`: why an adapter is merged onto these weights, or not.
    """

    name: str
    title: str
    merge_why: str
    code_bits: int = 0
    scales: Scales | None = None
    is_dequantised: bool = False
    has_outlier_columns: bool = False
    takes_experts: bool = False
    loading: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dense_price: str = ""

    @property
    def is_quantised(self) -> bool:
        """False for whole weights, which alone can be taken apart, changed or trained."""
        return self.code_bits > 0

    @property
    def quant_type(self) -> str:
        """bitsandbytes' name of its 4-bit code; "" where it has none."""
        return self.loading.get("bnb_4bit_quant_type", "")

    def weight_bits(self, dense_bits: float) -> float:
        """Of a weight without its scale; `dense_bits`: of one in the compute dtype."""
        return self.code_bits or dense_bits

    def scale_bits(self, *, double_quant: bool) -> float:
        """A weight, of the scales of its block."""
        return self.scales.bits_a_weight(are_quantised=double_quant) if self.scales else 0.0

    def arguments(self, *, double_quant: bool, dtype: Any) -> dict[str, Any]:
        """Those of BitsAndBytesConfig for products in `dtype`; none where nothing is quantised."""
        scaled = {"bnb_4bit_use_double_quant": double_quant, "bnb_4bit_compute_dtype": dtype}
        return {**self.loading, **(scaled if self.scales else {})}
