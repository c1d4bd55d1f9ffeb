"""Bytes that training with the peft backend is expected to need on its device, by component. Pure arithmetic.

Saved activations were counted on the engine's own path (PEFT LoRA in float32 on NF4 layers, autocast; every tensor that
autograd keeps, once per storage; see docs/decisions/001-memory-model.md). For one token of one decoder layer of hidden
size h, with I the widest input (the MLP's inner size), R the outputs of all its linears and C the inputs of those that
have an adapter, the layer keeps

    R - h + I   elements in the compute dtype: q, k, v, the attention's output, gate, up, activation, their product
    2 h         float32: what goes into the two norms; queries and keys, too, where these have norms of their own
    C           in the compute dtype: autocast makes a copy of the input for each adapter
    C           bytes of mask where the adapters have dropout

which is 212 KiB for Llama-3-8B. That is a CPU's: on a GPU PEFT sees that autocast is on and leaves the input as it is,
so adapters with a common input keep it once, and no copy of it where there is no dropout; with a mask, keys and values
are kept for every query head: 192 KiB. A checkpointed layer keeps its input, h, only. SDPA with a mask (all but
flash-attn) keeps one of its own a layer: tokens x tokens when packed; eager attention the scores of all heads, too.
What a recurrent layer keeps besides is counted on the meta device (`model.recurrence`), what a mixture's experts keep
is in `plan/memory/experts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from loradock.catalog import optimizers, storages
from loradock.facts import ModelFacts
from loradock.plan.memory import experts
from loradock.plan.memory.base import BYTES, RUNTIME_BYTES, row_bytes, weight_bytes, widest_input, widest_matrix
from loradock.plan.memory.widths import widths

ADAPTER_BYTES = {"bfloat16": 10, "float16": 10, "float32": 8}
"""float32 weight and gradient, and the copy that autocast casts down."""
FRAGMENTATION = 1.08
"""Of all bytes, on a CPU and where a model is shared. An assumption."""
ALLOCATOR_FLOOR_BYTES = 200 << 20
GPU_FRAGMENTATION = 0.025
"""What torch's allocator reserves on a GPU beyond its tensors' bytes, and the share of activations and logits. Measured
with expandable segments for four models (bench.memory --allocator)."""
SCORES_KEPT, SCORES_IN_FLIGHT = 1, 3
"""Copies of the scores of all heads where attention is written out (eager): of each layer, and of one beside. Measured
for gpt-oss, whose softmax is in the compute dtype."""
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


def layer_bytes_per_token(
    model: ModelFacts, *, dtype: str, has_dropout: bool = False, on_gpu: bool = False, has_mask: bool = False
) -> float:
    """Bytes that a plain decoder layer keeps for a token from forward to backward, its mask left out."""
    targets = set(model.targets)
    outputs = sum(layer.rows for layer in model.linears) / model.layers
    adapter_inputs = sum(layer.columns for layer in model.linears if layer.name in targets) / model.layers
    copies = adapter_inputs
    if on_gpu:
        copies = gpu_copies(model, has_mask=has_mask) + (adapter_inputs if has_dropout else common_inputs(model))
    elements = max(0.0, outputs - model.hidden) + widest_input(model) + copies
    plain = BYTES[dtype] * elements + BYTES["float32"] * 2 * model.hidden + adapter_inputs * has_dropout
    plain += BYTES["float32"] * (dtype != "float32") * model.normed_heads / model.layers
    plain += experts.kept_bytes_per_token(model, size=BYTES[dtype])
    return plain + (model.recurrence.kept(dtype) * recurrent_share(model) if model.recurrence else 0)


def recurrent_share(model: ModelFacts) -> float:
    """Of the layers, those that are recurrent; the mean layer has so much of what one of them keeps."""
    return model.recurrence.layers / model.layers if model.recurrence else 0.0


def beyond_mean(model: ModelFacts, *, dtype: str) -> float:
    """Bytes that a recurrent layer keeps for a token beyond the mean one: what is recomputed at once is whole."""
    return model.recurrence.kept(dtype) * (1 - recurrent_share(model)) if model.recurrence else 0.0


def chunk_bytes(model: ModelFacts, batch: Batch, *, dtype: str) -> int:
    """Bytes that a recurrent layer keeps for the tokens that fill each row up to whole chunks of its kernels."""
    if not model.recurrence:
        return 0
    return batch.rows * (-batch.length % model.recurrence.chunk_tokens) * model.recurrence.kept(dtype)


def common_inputs(model: ModelFacts) -> float:
    """Inputs of a layer's adapters, one that several share counted once; attention's output is counted as that."""
    targets = set(model.targets)
    inputs = {
        (layer.name.rpartition(".")[0], layer.columns)
        for layer in model.linears
        if layer.name in targets and not layer.name.endswith(".o_proj")
    }
    return sum(columns for _, columns in inputs) / model.layers


def gpu_copies(model: ModelFacts, *, has_mask: bool) -> float:
    """Elements of a token that attention keeps besides: keys and values of all heads, and what a fused output holds."""
    wide = widths(model, rank=1)
    repeated = max(0.0, 3 * wide.attended - wide.projected) if has_mask else 0.0
    is_fused = any(layer.name.endswith(".qkv_proj") for layer in model.linears)
    return repeated + is_fused * (2 * wide.projected / 3)


def activation_bytes(
    model: ModelFacts,
    batch: Batch,
    *,
    checkpointing: bool,
    dtype: str,
    attention: str = "flash_attention_2",
    has_dropout: bool = False,
    on_gpu: bool = False,
) -> int:
    """Bytes kept from forward to backward, and what one layer's backward has in flight.

    Checkpointed: the input of every layer, and one whole layer that is recomputed. In flight is the gradient of
    the widest input, with the float32 one of its adapter.
    """
    mask = 0 if attention == "flash_attention_2" else batch.mask_elements * BYTES[dtype]
    per_token = layer_bytes_per_token(
        model, dtype=dtype, has_dropout=has_dropout, on_gpu=on_gpu, has_mask=attention != "flash_attention_2"
    )
    scores = model.heads * batch.mask_elements * BYTES[dtype] if attention == "eager" else 0
    filling, share = chunk_bytes(model, batch, dtype=dtype), recurrent_share(model)
    layer = batch.tokens * per_token + mask + SCORES_KEPT * scores + share * filling
    in_flight = batch.tokens * widest_input(model) * (BYTES[dtype] + BYTES["float32"])
    in_flight += int(batch.tokens * experts.in_flight_bytes_per_token(model, size=BYTES[dtype]))
    in_flight += batch.tokens * experts.router_bytes_per_token(model) + SCORES_IN_FLIGHT * scores
    inputs = input_bytes(model, batch, dtype=dtype)
    heaviest = layer + batch.tokens * beyond_mean(model, dtype=dtype) + (1 - share) * filling
    return int(inputs + heaviest if checkpointing else model.layers * layer) + in_flight


def input_bytes(model: ModelFacts, batch: Batch, *, dtype: str) -> int:
    """Bytes of what goes into all layers."""
    return batch.tokens * model.layers * model.hidden * BYTES[dtype]


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
    runtime_bytes: int = RUNTIME_BYTES,
    on_gpu: bool = False,
) -> dict[str, int]:
    """Bytes by component, with `total` last: weights, adapters with gradients, optimiser, activations, logits, rest."""
    adapters = model.adapter_parameters(rank)
    activations = activation_bytes(
        model,
        batch,
        checkpointing=checkpointing,
        dtype=dtype,
        attention=attention,
        has_dropout=has_dropout,
        on_gpu=on_gpu,
    )
    logits = logit_bytes(model, batch, dtype=dtype)
    if on_gpu and checkpointing:  # the head and a layer that is recomputed never meet
        logits = max(0, logits - (activations - input_bytes(model, batch, dtype=dtype)))
    parts = {
        "base weights": weight_bytes(model, quantization=quantization, double_quant=double_quant, dtype=dtype),
        "adapters and gradients": adapters * ADAPTER_BYTES[dtype],
        "optimiser state": adapters * optimizers.named(optimizer).device_bytes,
        "activations": activations,
        "logits": logits,
        "dequantised layer": widest_matrix(model) * BYTES[dtype] * storages.of(quantization).is_quantised,
        "runtime": runtime_bytes,
    }
    if model.row_parameters:
        parts["embedding with new rows"] = row_bytes(model, dtype=dtype)
    total = sum(parts.values())
    if on_gpu:
        moving = parts["activations"] + parts["logits"]
        parts["fragmentation"] = ALLOCATOR_FLOOR_BYTES + int(moving * GPU_FRAGMENTATION)
    else:
        parts["fragmentation"] = int(total * (FRAGMENTATION - 1))
    parts["total"] = total + parts["fragmentation"]
    return parts
