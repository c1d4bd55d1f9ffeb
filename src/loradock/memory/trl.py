"""Bytes that training with the TRL engine is expected to need on its device, by component. Pure arithmetic.

Saved activations were counted on the engine's own path (PEFT LoRA in float32 on NF4 layers, autocast; every tensor that
autograd keeps, once per storage; see docs/decisions/001-memory-model.md). For one token of one decoder layer of hidden
size h, with I the widest input (the MLP's inner size), R the outputs of all its linears and C the inputs of those that
have an adapter, the layer keeps

    R - h + I   elements in the compute dtype: q, k, v, the attention's output, gate, up, activation, their product
    2 h         float32: what goes into the two norms
    C           in the compute dtype: autocast makes a copy of the input for each adapter
    C           bytes of mask where the adapters have dropout

which is 212 KiB for Llama-3-8B. A checkpointed layer keeps its input, h, only. SDPA with a mask (all but flash-attn)
keeps one of its own a layer: tokens x tokens when packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.facts import ModelFacts
from loradock.memory.base import BYTES, RUNTIME_BYTES, weight_bytes, widest_input, widest_matrix

OPTIMIZER_BYTES = {"adamw_fused": 8, "adamw": 8, "adamw_8bit": 2, "paged_adamw_8bit": 0}
ADAPTER_BYTES = {"bfloat16": 10, "float16": 10, "float32": 8}
"""float32 weight and gradient, and the copy that autocast casts down."""
FRAGMENTATION = 1.08
LOGIT_TILE_TOKENS = 4096
LOGIT_TILE_VOCABULARY = 32768
"""TRL projects to logits in tiles of this size; the tile is allocated whole, however small the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The shape of one pass of one GPU: `rows` of `length` tokens; packed, one row as long as all of them."""

    rows: int
    length: int
    is_packed: bool = False

    @property
    def tokens(self) -> int:
        """Tokens in the pass, padding included."""
        return self.rows * self.length

    @property
    def mask_elements(self) -> int:
        """Elements of an attention mask over the pass."""
        return self.tokens**2 if self.is_packed else self.rows * self.length**2


def layer_bytes_per_token(model: ModelFacts, *, dtype: str, has_dropout: bool = False) -> float:
    """Bytes that a plain decoder layer keeps for a token from forward to backward, its mask left out."""
    targets = set(model.targets)
    outputs = sum(layer.rows for layer in model.linears) / model.layers
    adapter_inputs = sum(layer.columns for layer in model.linears if layer.name in targets) / model.layers
    elements = max(0.0, outputs - model.hidden) + widest_input(model) + adapter_inputs
    return BYTES[dtype] * elements + BYTES["float32"] * 2 * model.hidden + adapter_inputs * has_dropout


def activation_bytes(
    model: ModelFacts,
    batch: Batch,
    *,
    checkpointing: bool,
    dtype: str,
    attention: str = "flash_attention_2",
    has_dropout: bool = False,
) -> int:
    """Bytes kept from forward to backward, and what one layer's backward has in flight.

    Checkpointed: the input of every layer, and one whole layer that is computed again. In flight is the gradient of
    the widest input, with the float32 one of its adapter.
    """
    mask = 0 if attention == "flash_attention_2" else batch.mask_elements * BYTES[dtype]
    layer = batch.tokens * layer_bytes_per_token(model, dtype=dtype, has_dropout=has_dropout) + mask
    in_flight = batch.tokens * widest_input(model) * (BYTES[dtype] + BYTES["float32"])
    inputs = batch.tokens * model.layers * model.hidden * BYTES[dtype]
    return int(inputs + layer if checkpointing else model.layers * layer) + in_flight


def logit_bytes(model: ModelFacts, batch: Batch, *, dtype: str) -> int:
    """Bytes of the tiled head and loss: one tile, and the last hidden states with their float32 gradient."""
    tile = min(batch.tokens, LOGIT_TILE_TOKENS) * LOGIT_TILE_VOCABULARY * BYTES[dtype]
    return tile + batch.tokens * model.hidden * (2 * BYTES[dtype] + BYTES["float32"])


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
    attention: str = "flash_attention_2",
    has_dropout: bool = False,
) -> dict[str, int]:
    """Bytes by component, with `total` last: weights, adapters with gradients, optimiser, activations, logits, rest."""
    adapters = model.adapter_parameters(rank)
    parts = {
        "base weights": weight_bytes(model, quantization=quantization, double_quant=double_quant, dtype=dtype),
        "adapters and gradients": adapters * ADAPTER_BYTES[dtype],
        "optimiser state": adapters * OPTIMIZER_BYTES[optimizer],
        "activations": activation_bytes(
            model, batch, checkpointing=checkpointing, dtype=dtype, attention=attention, has_dropout=has_dropout
        ),
        "logits": logit_bytes(model, batch, dtype=dtype),
        "dequantised layer": 0 if quantization == "none" else widest_matrix(model) * BYTES[dtype],
        "runtime": RUNTIME_BYTES,
    }
    total = sum(parts.values())
    parts["fragmentation"] = int(total * (FRAGMENTATION - 1))
    parts["total"] = total + parts["fragmentation"]
    return parts
