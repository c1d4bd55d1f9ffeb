"""The table of storages, the default one first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from loradock.catalog.storages.base import Scales, Storage

# Blocks and double quantisation: QLoRA (Dettmers et al. 2023), section 3.
NF4_SCALES = Scales(block=64, bits=8, group=256)
NF4 = Storage(
    name="nf4",
    title="NF4",
    code_bits=4,
    scales=NF4_SCALES,
    is_dequantised=True,
    takes_experts=True,
    loading={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    dense_price="the base weights take about four times the memory",
    merge_why="the adapter was trained on NF4 weights: their dequantised values are the base",
)
# LLM.int8 (Dettmers et al. 2022).
INT8 = Storage(
    name="int8",
    title="int8",
    code_bits=8,
    has_outlier_columns=True,
    loading={"load_in_8bit": True},
    dense_price="twice the weights' memory",
    merge_why="LLM.int8 quantises activations too, which no weights reproduce",
)
WHOLE = Storage(
    name="none",
    title="unquantised",
    takes_experts=True,
    merge_why="the adapter was trained on unquantised weights",
)
STORAGES: dict[str, Storage] = {storage.name: storage for storage in (NF4, INT8, WHOLE)}

if TYPE_CHECKING:
    StorageName = str
else:
    StorageName = Literal[tuple(STORAGES)]

__all__ = ["NF4", "NF4_SCALES", "STORAGES", "WHOLE", "Scales", "Storage", "StorageName"]


def of(name: str) -> Storage:
    """The storage of this name; KeyError where there is none."""
    return STORAGES[name]
