"""Bytes that a training process is expected to need on its device, by component. Pure arithmetic.

The figures a token are counted on PEFT's own path (see docs/decisions): per token and layer a checkpointed layer
keeps its input only, a plain one the inputs of every linear, norm and activation.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.facts import ModelFacts

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
NF4_BITS = 4.127
NF4_SINGLE_QUANT_BITS = 4.5
OPTIMIZER_BYTES = {"adamw_fused": 8, "adamw": 8, "adamw_8bit": 2, "paged_adamw_8bit": 0}
PLAIN_LAYER_HIDDEN_MULTIPLE = 24
RUNTIME_BYTES = 700 << 20
FRAGMENTATION = 1.08
LOGIT_CHUNK_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The shape of one pass of one GPU: `rows` of `length` tokens (packed: one row as long as all of them)."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens in the pass, padding included."""
        return self.rows * self.length


def weight_bytes(model: ModelFacts, *, quantization: str, double_quant: bool, dtype: str) -> int:
    """Bytes of the frozen base: quantised linears, and everything else in the compute dtype."""
    bits = {
        "nf4": NF4_BITS if double_quant else NF4_SINGLE_QUANT_BITS,
        "int8": 8.0,
        "none": 8.0 * BYTES[dtype],
    }[quantization]
    other = model.parameters - model.linear_parameters
    return int(model.linear_parameters * bits / 8) + other * BYTES[dtype]


def activation_bytes(model: ModelFacts, batch: Batch, *, checkpointing: bool, dtype: str) -> int:
    """Bytes kept from forward to backward: a layer's input each when checkpointed (plus one whole layer)."""
    token_layer = model.hidden * PLAIN_LAYER_HIDDEN_MULTIPLE * BYTES[dtype]
    if not checkpointing:
        return batch.tokens * model.layers * token_layer
    return batch.tokens * (model.layers * model.hidden * BYTES[dtype] + token_layer)


def expected(
    model: ModelFacts,
    batch: Batch,
    *,
    quantization: str,
    double_quant: bool,
    dtype: str,
    rank: int,
    optimizer: str,
    checkpointing: bool,
) -> dict[str, int]:
    """Bytes by component, with `total` last: weights, adapters with gradients, optimiser, activations, logits, rest."""
    adapters = model.adapter_parameters(rank)
    widest = max((layer.rows * layer.columns for layer in model.linears), default=0)
    parts = {
        "base weights": weight_bytes(model, quantization=quantization, double_quant=double_quant, dtype=dtype),
        "adapters and gradients": adapters * 8,
        "optimiser state": adapters * OPTIMIZER_BYTES[optimizer],
        "activations": activation_bytes(model, batch, checkpointing=checkpointing, dtype=dtype),
        "logits": min(batch.tokens, LOGIT_CHUNK_TOKENS) * model.vocabulary * 4 * 2,
        "dequantised layer": 0 if quantization == "none" else widest * BYTES[dtype],
        "runtime": RUNTIME_BYTES,
    }
    total = sum(parts.values())
    parts["fragmentation"] = int(total * (FRAGMENTATION - 1))
    parts["total"] = total + parts["fragmentation"]
    return parts
