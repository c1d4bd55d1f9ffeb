"""Mixtures of experts that GGUF holds: llama.cpp's name of each, what its metadata says beside a dense decoder's, and
what llama.cpp has built in, so that a config.json that says otherwise is refused.

To add one: its line in `MIXTURES`, once llama.cpp's logits are those of transformers (`tests/export_gguf/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loradock.use.gguf import rearranged
from loradock.use.gguf.mixtures import recurrent, sigmoid, softmax
from loradock.use.gguf.rearranged import Changes

Fields = Callable[[Any], Mapping[str, Any]]
Differences = Callable[[Any], Mapping[str, bool]]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A mixture by transformers' `model_type`; `name` is llama.cpp's.

    `fields`: what gguf.GGUFWriter puts by `add_<key>`. `differences`: {key of config.json: whether llama.cpp computes
    another model}. `changes`: what is arranged otherwise there. `is_interleaved`: rows of gate and up lie in turn in
    the fused weight, not one below the other. `is_transposed`: matrices of experts lie [inputs, outputs].
    `turns_part`: rotary positions may turn a part of a head. `alias`: what stands in a class' names, and in its place
    in gguf's table of them.
    """

    name: str
    fields: Fields
    differences: Differences = lambda _: {}
    changes: Callable[[Any], Changes] = lambda _: {}
    is_interleaved: bool = False
    is_transposed: bool = False
    turns_part: bool = False
    alias: tuple[str, str] = ("", "")


MIXTURES = {
    "qwen3_moe": Mixture(name="qwen3moe", fields=softmax.qwen3, differences=softmax.not_qwen3),
    "qwen2_moe": Mixture(name="qwen2moe", fields=softmax.qwen2, differences=softmax.not_qwen2),
    "mixtral": Mixture(name="llama", fields=softmax.mixtral),
    "gpt_oss": Mixture(
        name="gpt-oss", fields=softmax.gpt_oss, differences=softmax.not_gpt_oss, is_interleaved=True, is_transposed=True
    ),
    "deepseek_v3": Mixture(
        name="deepseek2", fields=sigmoid.deepseek3, differences=sigmoid.not_compressed, changes=rearranged.compressed
    ),
    "deepseek_v2": Mixture(
        name="deepseek2", fields=sigmoid.deepseek2, differences=sigmoid.not_deepseek2, changes=rearranged.compressed
    ),
    "glm4_moe_lite": Mixture(
        name="deepseek2", fields=sigmoid.glm_lite, differences=sigmoid.not_glm_lite, changes=rearranged.compressed
    ),
    "mistral4": Mixture(
        name="mistral4",
        fields=sigmoid.mistral4,
        differences=sigmoid.not_compressed,
        changes=rearranged.compressed,
        turns_part=True,
    ),
    "qwen3_next": Mixture(
        name="qwen3next",
        fields=recurrent.delta_net,
        differences=recurrent.not_qwen3_next,
        changes=rearranged.delta_net,
        turns_part=True,
    ),
    "qwen3_5_moe_text": Mixture(
        name="qwen35moe",
        fields=recurrent.qwen35,
        differences=recurrent.not_delta_net,
        changes=rearranged.tiled_delta_net,
        turns_part=True,
    ),
    "granitemoe": Mixture(name="granitemoe", fields=softmax.granite, changes=rearranged.granite),
    "granitemoehybrid": Mixture(
        name="granitehybrid",
        fields=recurrent.granite_hybrid,
        differences=recurrent.not_granite_hybrid,
        changes=rearranged.granite,
    ),
    "nemotron_h": Mixture(
        name="nemotron_h_moe",
        fields=recurrent.nemotron,
        differences=recurrent.not_nemotron,
        changes=rearranged.nemotron,
        alias=("model.layers.", "backbone.layers."),
    ),
    "llama4_text": Mixture(name="llama4", fields=softmax.llama4, differences=softmax.not_llama4, is_transposed=True),
    "dots1": Mixture(name="dots1", fields=sigmoid.sigmoids, differences=sigmoid.dots),
    "minimax_m2": Mixture(name="minimax-m2", fields=sigmoid.minimax, differences=sigmoid.not_tied, turns_part=True),
    "glm4v_moe_text": Mixture(name="glm4moe", fields=sigmoid.glm_seeing, turns_part=True),
    "glm4_moe": Mixture(name="glm4moe", fields=sigmoid.sigmoids, turns_part=True),
    "olmoe": Mixture(name="olmoe", fields=softmax.olmoe, differences=softmax.not_olmoe),
    "ernie4_5_moe": Mixture(name="ernie4_5-moe", fields=softmax.ernie, differences=softmax.not_ernie),
}
"""By transformers' model_type of the language model."""

WITHOUT = {
    "deepseek_v32": "the package gguf has no names for its indexer of attention",
    "deepseek_v4": "the package gguf has no names for its attention",
    "gemma4_text": "its layers were not compared with llama.cpp's",
}
"""Why a mixture has no line above, by its model_type."""
