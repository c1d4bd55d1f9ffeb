"""Arithmetic of a training step: the operations that QLoRA needs, so that speeds become shares of a ceiling.

Counted are the two passes of LoRA: forward, and backward to the activations. The base's weights get no gradient, so
that full fine-tuning's third pass is not there; recomputation (checkpointing) is work, but none that is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.train.arms.base import LORA

PASSES = 2
LORA_PASSES = 3
"""An adapter does get a gradient."""
ATTENTION_PASSES = 3
"""Two products forward; four backward, to queries, keys, values and weights."""


def linear_layers(config: dict[str, Any]) -> list[tuple[int, int]]:
    """(inputs, outputs) of the linear layers of one decoder block, `config` being one of `models.settings`.

    Joined layers (Phi-3's) count as those that they join: the products are the same, but for the adapters' A.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]


def operations(config: dict[str, Any], *, lengths: Any, supervised_tokens: int) -> float:
    """Floating-point operations of training on rows of these lengths (int [rows]) once.

    Linear layers and adapters for every token, attention for the pairs that a causal mask (and a sliding window)
    leaves, the output head for supervised tokens only: nothing else needs its logits.
    """
    lengths = np.asarray(lengths, dtype=np.float64)
    layers = linear_layers(config)
    weights = sum(inputs * outputs for inputs, outputs in layers)
    adapters = sum(LORA["r"] * (inputs + outputs) for inputs, outputs in layers)
    window = np.minimum(lengths, config.get("sliding_window") or np.inf)
    pairs = float((window * (window + 1) / 2 + (lengths - window) * window).sum())
    tokens, depth = float(lengths.sum()), config["num_hidden_layers"]
    head = config["vocab_size"] * config["hidden_size"]
    return (
        2.0 * tokens * depth * (PASSES * weights + LORA_PASSES * adapters)
        + 2.0 * ATTENTION_PASSES * 2 * pairs * depth * layers[0][1]
        + 2.0 * PASSES * supervised_tokens * head
    )
