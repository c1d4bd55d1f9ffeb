"""Recurrent layers are found by what transformers says of a layer, and what they keep is counted as it is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hybrids import KINDS, MAMBA_2, built, config_of
from transformers import AutoConfig, AutoModelForCausalLM

from loradock.facts import COUNTED_TOKENS, Recurrence
from loradock.model import recurrence

DELTA, STATE = ("causal-conv1d", "flash-linear-attention"), ("causal-conv1d", "mamba-ssm")
EXPECTED = {
    "qwen3_5_text": (3, DELTA),
    "qwen3_next": (3, DELTA),
    "olmo_hybrid": (3, DELTA),
    "kimi_linear": (3, DELTA),
    "lfm2": (2, ("causal-conv1d",)),
    "falcon_h1": (2, STATE),
    "granitemoehybrid": (2, STATE),
    "bamba": (2, STATE),
    "nemotron_h": (2, STATE),
    "zamba2": (3, STATE),
    "jamba": (2, STATE),
}


def found(config: Any) -> Recurrence | None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return recurrence.of(model, config.get_text_config(decoder=True))


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_how_many_layers_are_recurrent_and_which_kernels_are_missing(kind: str) -> None:
    counted = found(config_of(kind))
    assert counted is not None
    assert (counted.layers, counted.missing) == EXPECTED[kind]
    assert counted.launches > 10
    assert counted.kept("float32") >= counted.kept("bfloat16") * 0.9 > 0


CHUNKS = {"lfm2": 1, "jamba": 1, **dict.fromkeys(("qwen3_5_text", "qwen3_next", "olmo_hybrid", "kimi_linear"), 64)}


@pytest.mark.parametrize("kind", ["qwen3_5_text", "kimi_linear", "lfm2", "granitemoehybrid", "jamba"])
def test_the_chunk_that_is_told_is_the_one_that_a_row_is_filled_up_to(kind: str) -> None:
    mixer, _ = next(recurrence.mixers(built(kind)))
    chunk = recurrence.chunk_tokens(mixer)
    assert chunk == CHUNKS.get(kind, MAMBA_2["mamba_chunk_size"])
    sizes: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    def kept(tokens: int) -> int:
        sizes.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            mixer.requires_grad_(False)(torch.randn(1, tokens, 64, requires_grad=True))
        return sum(sizes)

    step, jump = kept(chunk + 2) - kept(chunk + 1), kept(chunk + 1) - kept(chunk)
    assert (jump > 3 * step) == (chunk > 1), "the first token of a chunk costs what all of its tokens do"


@pytest.mark.parametrize(
    ("kind", "settings", "is_recurrent"),
    [
        ("llama", {}, False),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}, False),
        ("granitemoehybrid", {"layer_types": ["full_attention"] * 2}, False),
        ("rwkv", {}, True),
        ("minimax", {"layer_types": ["linear_attention", "full_attention"]}, True),
    ],
)
def test_attention_alone_is_not_recurrent_and_a_class_that_keeps_a_state_is(
    kind: str, settings: dict[str, Any], is_recurrent: bool
) -> None:
    counted = found(AutoConfig.for_model(kind, num_hidden_layers=2, **settings))
    assert (counted is not None) == is_recurrent


@pytest.mark.thin(4)
@pytest.mark.parametrize("kind", ["qwen3_5_text", "kimi_linear", "lfm2", "bamba", "jamba"])
def test_what_is_counted_is_what_a_layer_keeps_in_memory(kind: str) -> None:
    model = built(kind)
    mixer, _ = next(recurrence.mixers(model))
    mixer.requires_grad_(False)
    weights = {each.untyped_storage().data_ptr() for each in (*mixer.parameters(), *mixer.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    states = torch.randn(1, COUNTED_TOKENS, model.config.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = mixer(states)
    held = sum(each.untyped_storage().nbytes() for each in kept.values())
    counted = found(config_of(kind))
    assert out is not None
    assert counted is not None
    assert held / COUNTED_TOKENS == pytest.approx(counted.kept("float32"), rel=0.02)
