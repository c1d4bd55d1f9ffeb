"""Weights in GGUF: their names, order of rows and types, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model import architecture, names, source
from loradock.use.gguf.metadata import OFFSET_NORMS, PERMUTED, Shape
from loradock.use.merge import tensors
from loradock.use.merge.tensors import Entry

if TYPE_CHECKING:
    import numpy as np
    import torch

    from loradock.model.source import BaseModel

TYPES = {"bf16": "BF16", "f16": "F16", "q8_0": "Q8_0"}
FILE_TYPES = {"bf16": "MOSTLY_BF16", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
BLOCK = 32
"""Numbers that share a scale in Q8_0."""
ROWS = 4096
SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One tensor: its name in GGUF, its type (a name of gguf.GGMLQuantizationType), and where it lies."""

    name: str
    type: str
    entry: Entry


def resolve(
    files: Sequence[Path], shape: Shape, *, type_name: str, is_tied: bool, own: Mapping[str, str] | None = None
) -> list[Weight]:
    """All tensors of a model, by llama.cpp's names. ModelError for one that it does not know.

    `own`: see `of_language_model`; tensors that it does not name are left out.
    Vectors are float32, as llama.cpp has them; a row that is no multiple of 32 stays float16 where Q8_0 is asked for.
    """
    import gguf

    kind = next(
        known_architecture for known_architecture, name in gguf.MODEL_ARCH_NAMES.items() if name == shape.architecture
    )
    name_map = gguf.get_tensor_name_map(kind, shape.layers)
    tensors_to_write: list[Weight] = []
    for file in files:
        for entry in tensors.entries(file):
            if entry.name.endswith("rotary_emb.inv_freq") or (is_tied and entry.name == "lm_head.weight"):
                continue
            if own is not None and entry.name not in own:
                continue
            known = entry.name if own is None else own[entry.name]
            full = known if known.startswith(("model.", "lm_head.")) else f"model.{known}"
            name = name_map.get_name(full, try_suffixes=SUFFIXES)
            if name is None:
                raise ModelError(f"{entry.name} has no name in GGUF", hint="llama.cpp's own convert_hf_to_gguf.py")
            tensors_to_write.append(Weight(name=name, type=_type(entry, type_name), entry=entry))
    return tensors_to_write


def of_language_model(base: BaseModel) -> dict[str, str] | None:
    """{name in the files: name in the class of the language model} where the model has other parts, too; else None.

    A head that is tied to the embedding is not named.
    """
    if not architecture.is_wrapper(base.config):
        return None
    model = source.on_meta(base)
    part, once = f"{architecture.decoder_name(model)}.", dict(model.named_parameters())
    files = [entry.name for file in base.weight_files for entry in tensors.entries(file)]
    return {
        name: f"model.{weight.removeprefix(part)}" if weight.startswith(part) else weight
        for name, weight in names.in_model(model, files).items()
        if weight in once
    }


def _type(entry: Entry, type_name: str) -> str:
    if len(entry.shape) < 2:
        return "F32"
    return "F16" if type_name == "q8_0" and entry.shape[-1] % BLOCK else TYPES[type_name]


def size(weight: Weight) -> int:
    """Bytes in the file."""
    import gguf

    per_block, size_of_block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[weight.type]]
    return weight.entry.count // per_block * size_of_block


def values(weight: Weight, shape: Shape) -> np.ndarray[Any, Any]:
    """The numbers as they lie in the file: float32, float16, the bits of bfloat16, or blocks of Q8_0 as bytes.

    ModelError where a number does not fit float16.
    """
    import torch

    value = tensors.read(weight.entry)
    if shape.architecture in OFFSET_NORMS and weight.name.endswith("norm.weight"):
        value = value.float() + 1
    if shape.architecture in PERMUTED and weight.name.split(".")[-2] in ("attn_q", "attn_k"):
        value = permuted(value, shape.heads if ".attn_q." in weight.name else shape.key_heads)
    if weight.type == "F32":
        return value.float().numpy()
    if weight.type == "BF16":
        return value.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    if weight.type == "Q8_0":
        return _q8_0(value)
    half = value.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise ModelError(f"{weight.entry.name} has numbers that float16 does not hold", hint="--type bf16")
    return half.numpy()


def permuted(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head with its halves interleaved: what transformers rotates as halves, llama.cpp does as pairs."""
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return halves.transpose(1, 2).reshape(value.shape)


def _q8_0(value: torch.Tensor) -> np.ndarray[Any, Any]:
    import gguf
    import numpy as np

    kind = gguf.GGMLQuantizationType.Q8_0
    parts = [
        gguf.quants.quantize(value[start : start + ROWS].float().numpy(), kind)
        for start in range(0, value.shape[0], ROWS)
    ]
    return np.concatenate(parts)
