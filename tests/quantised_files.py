"""Bases rewritten as others publish them quantised, with their twins in 16 bit; by the formats' words, not ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import mixtures
import torch
from safetensors.torch import load_file, save_file
from tiny import copy_tree

Tensors = dict[str, torch.Tensor]
LARGEST = 448.0
"""Of float8_e4m3fn."""
MATRICES = (".q_proj", ".k_proj", ".v_proj", ".o_proj", ".gate_proj", ".up_proj", ".down_proj", ".w1", ".w2", ".w3")
LATENT = (".q_a_proj", ".q_b_proj", ".kv_a_proj_with_mqa", ".kv_b_proj")


def rewrite(
    base: Path,
    directory: Path,
    change: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]],
    settings: Mapping[str, Any],
) -> tuple[Path, Path]:
    """(quantised, twin in bfloat16) of a base: `change` gives what files hold of a matrix, and its dense values."""
    quantised, twin = copy_tree(base, directory / "quantised"), copy_tree(base, directory / "twin")
    held: Tensors = {}
    dense: Tensors = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        if name.removesuffix(".weight").endswith((*MATRICES, *LATENT)):
            parts, values = change(name, tensor.float())
            held |= parts
            dense[name] = values.to(torch.bfloat16)
        else:
            held[name] = dense[name] = tensor.to(torch.bfloat16)
    for place, tensors, more in ((quantised, held, {"quantization_config": settings}), (twin, dense, {})):
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", **more}))
    return quantised, twin


def fp8(base: Path, directory: Path, *, block: int | None = 128) -> tuple[Path, Path]:
    """FP8 as DeepSeek and Qwen publish it, in blocks; as Mistral does (a scale a matrix) where `block` is None."""
    size = [block, block] if block else None

    def change(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        parts = fp8_parts(name, weight, block=size)
        return parts, fp8_values(*list(parts.values())[:2], block=size)

    scheme = "dynamic" if block else "static"
    settings = {"quant_method": "fp8", "activation_scheme": scheme, "weight_block_size": size, "fmt": "e4m3"}
    return rewrite(base, directory, change, settings)


def fp8_parts(name: str, weight: torch.Tensor, *, block: list[int] | None) -> Tensors:
    """What files in FP8 hold of a matrix: numbers, scales, and where it has one scale, one of activations."""
    numbers = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    height, width = block or weight.shape
    scales = torch.empty(ceil(weight.shape[0] / height), ceil(weight.shape[1] / width))
    for (i, j), own in blocks(weight.shape, height, width):
        scales[i, j] = weight[own].float().abs().max() / LARGEST
        numbers[own] = (weight[own].float() / scales[i, j]).to(torch.float8_e4m3fn)
    parts = {name: numbers, f"{name}_scale_inv": scales if block else scales.reshape(())}
    return parts if block else {**parts, f"{name.removesuffix('.weight')}.activation_scale": torch.tensor(0.02)}


def fp8_values(numbers: torch.Tensor, scales: torch.Tensor, *, block: list[int] | None) -> torch.Tensor:
    """The matrix that they are, float32, block by block."""
    height, width = block or numbers.shape
    values = torch.empty(numbers.shape)
    for (i, j), own in blocks(numbers.shape, height, width):
        values[own] = numbers[own].float() * (scales[i, j] if block else scales)
    return values


def blocks(shape: torch.Size, height: int, width: int) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """(number of the block, where it lies) of every block of a matrix."""
    for i in range(ceil(shape[0] / height)):
        for j in range(ceil(shape[1] / width)):
            yield (i, j), (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))


def compressed(base: Path, directory: Path, *, kind: str, strategy: str) -> tuple[Path, Path]:
    """compressed-tensors: float-quantized (FP8), int-quantized (int8) or pack-quantized (int4)."""
    bits = 4 if kind == "pack-quantized" else 8
    group = 16

    def change(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        width = {"tensor": columns, "channel": columns, "group": group}[strategy]
        parted = weight.reshape(rows, -1, width)
        most = LARGEST if kind == "float-quantized" else 2 ** (bits - 1) - 1
        scales = (parted.abs().amax(dim=2) / most).clamp(min=1e-6)
        if strategy == "tensor":
            scales = scales.max().reshape(1, 1)
        scales = scales.to(torch.bfloat16)
        scaled = parted / scales.float().unsqueeze(2)
        whole = scaled.to(torch.float8_e4m3fn) if kind == "float-quantized" else scaled.round().clamp(-most - 1, most)
        values = (whole.float() * scales.float().unsqueeze(2)).reshape(rows, columns)
        stored_scales = scales.reshape(1) if strategy == "tensor" else scales
        if kind != "pack-quantized":
            numbers = whole.reshape(rows, columns)
            stored = numbers if kind == "float-quantized" else numbers.to(torch.int8)
            return {name: stored, f"{name}_scale": stored_scales}, values
        shifted = (whole.reshape(rows, columns) + 8).long()
        words = torch.zeros(rows, columns // 8, dtype=torch.int64)
        for place in range(8):
            words |= shifted[:, place::8] << (4 * place)
        packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        shape = torch.tensor([rows, columns])
        return {f"{name}_packed": packed, f"{name}_scale": stored_scales, f"{name}_shape": shape}, values

    weights = {"num_bits": bits, "type": "float" if kind == "float-quantized" else "int", "symmetric": True}
    weights |= {"strategy": strategy, "group_size": group if strategy == "group" else None}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    settings = {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups, "ignore": ["lm_head"]}
    return rewrite(base, directory, change, settings)


SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "head_dim": 32},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 192, "hidden_size": 192, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 192, "hidden_size": 192},
    "deepseek_v3": {
        "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 192, "hidden_size": 192,
        "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 4, "n_shared_experts": 1, "head_dim": 16,
    },
}  # fmt: skip
"""Sides that are no multiples of the formats' 128, of transformers' own classes."""


def base(kind: str, directory: Path) -> Path:
    """A small random model of a kind."""
    mixtures.KINDS.setdefault(kind, {})
    return mixtures.make(directory, kind, **SHAPES[kind])
