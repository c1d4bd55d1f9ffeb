"""Weights in GGUF: their names, order of rows and types, one tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model import architecture, names, source
from loradock.use.gguf import experts
from loradock.use.gguf.experts import Source
from loradock.use.gguf.metadata import OFFSET_NORMS, PERMUTED, Shape
from loradock.use.merge import tensors

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
IN_F32 = (".ffn_gate_inp", ".ssm_conv1d.")
"""Matrices that llama.cpp has in float32 alone: routers, and the kernels of convolutions."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One tensor: its name in GGUF, its type (a name of gguf.GGMLQuantizationType), and what it is made of."""

    name: str
    type: str
    source: Source

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy has it, experts first."""
        return experts.shape_of(self.source)


def of_model(base: BaseModel, shape: Shape, *, type_name: str) -> list[Weight]:
    """All tensors of a model, by llama.cpp's names. ModelError for one that it does not know.

    Vectors, routers and convolutions are float32, as llama.cpp has them; a row that is no multiple of 32 stays float16
    where Q8_0 is asked for.
    """
    if shape.mixture:
        sources = experts.sources(base, shape.mixture)
    else:
        is_tied = bool(getattr(base.config, "tie_word_embeddings", False))
        sources = _of_dense(base.weight_files, is_tied=is_tied, own=of_language_model(base))
    name_of = _names(shape)
    return [_weight(each, name_of(each), type_name) for each in sources]


def _of_dense(files: Sequence[Path], *, is_tied: bool, own: Mapping[str, str] | None) -> list[Source]:
    """Those of a model without experts, by the names in its files. `own`: see `of_language_model`; others are left."""
    sources: list[Source] = []
    for file in files:
        for entry in tensors.entries(file):
            if entry.name.endswith("rotary_emb.inv_freq") or (is_tied and entry.name == "lm_head.weight"):
                continue
            if own is not None and entry.name not in own:
                continue
            known = entry.name if own is None else own[entry.name]
            full = known if known.startswith(("model.", "lm_head.")) else f"model.{known}"
            sources.append(Source(name=full, parts=(entry,)))
    return sources


def _names(shape: Shape) -> Callable[[Source], str]:
    """What says llama.cpp's name of a tensor."""
    import gguf

    kind = next(known for known, name in gguf.MODEL_ARCH_NAMES.items() if name == shape.architecture)
    name_map = gguf.get_tensor_name_map(kind, shape.layers)
    alias = shape.mixture.alias if shape.mixture else ("", "")

    def name_of(each: Source) -> str:
        if each.name.startswith("blk."):
            return each.name
        name = name_map.get_name(each.name.replace(*alias), try_suffixes=SUFFIXES)
        if name is None:
            raise ModelError(f"{each.parts[0].name} has no name in GGUF", hint="llama.cpp's own convert_hf_to_gguf.py")
        return name if name.endswith(SUFFIXES) else f"{name}.weight"

    return name_of


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


def _weight(each: Source, name: str, type_name: str) -> Weight:
    shape = experts.shape_of(each)
    if (
        len(shape) < 2
        or name.endswith("_norm.weight")
        or not name.endswith(".weight")
        or any(part in name for part in IN_F32)
    ):
        return Weight(name=name, type="F32", source=each)
    kind = "F16" if type_name == "q8_0" and shape[-1] % BLOCK else TYPES[type_name]
    return Weight(name=name, type=kind, source=each)


def size(weight: Weight) -> int:
    """Bytes in the file."""
    import gguf

    per_block, size_of_block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[weight.type]]
    return math.prod(weight.shape) // per_block * size_of_block


def values(weight: Weight, shape: Shape) -> np.ndarray[Any, Any]:
    """The numbers as they lie in the file: float32, float16, the bits of bfloat16, or blocks of Q8_0 as bytes.

    Experts are read one after the other. ModelError where a number does not fit float16.
    """
    import numpy as np

    parts = (_encoded(weight, value, shape) for value in experts.read(weight.source))
    first = next(parts)
    if not weight.source.is_of_experts:
        return first
    stacked = np.empty((len(weight.source.parts), *first.shape), dtype=first.dtype)
    stacked[0] = first
    for number, part in enumerate(parts, 1):
        stacked[number] = part
    return stacked


def _encoded(weight: Weight, value: torch.Tensor, shape: Shape) -> np.ndarray[Any, Any]:
    """A tensor, or an expert's matrix, by the rules of the architecture and in the type of the file."""
    import torch

    if shape.architecture in OFFSET_NORMS and weight.name.endswith("norm.weight"):
        value = value.float() + 1
    if shape.architecture in PERMUTED and weight.name.split(".")[-2] in ("attn_q", "attn_k"):
        value = permuted(value, shape.heads if ".attn_q." in weight.name else shape.key_heads)
    if weight.type == "F32":
        return value.float().contiguous().numpy()
    if weight.type == "BF16":
        return value.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    if weight.type == "Q8_0":
        return _q8_0(value)
    half = value.to(torch.float16).contiguous()
    if not bool(torch.isfinite(half).all()):
        raise ModelError(f"{weight.source.parts[0].name} has numbers that float16 does not hold", hint="--type bf16")
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
