"""Bytes that a process needs on its GPU where several share a model, by component. Pure arithmetic.

What is computed is as in the peft backend (`memory.peft`: PEFT's LoRA on NF4 layers under autocast); what differs is
what is cut among N ranks. Under `ddp` nothing is; `zero2` cuts gradients and optimiser state (Rajbhandari et al. 2020,
stages 1 and 2), `fsdp` and `zero3` the weights, too (stage 3). Then a layer is gathered for its forward and again for
its backward, the next one is fetched meanwhile, and what arrives is copied out of one buffer into its tensors:

    gathered layers    two layers whole: the one that computes, and the next
    gathered head      the output matrix whole, from the last layer's forward to the loss's backward
    buffers            one layer as it arrives, the gradients of one layer's adapters as they leave, and NCCL's own;
                       with offload, what is staged

NF4's scales of linear layers are not parameters: each process keeps all of them. A mixture's experts are one column of
packed weights and scales a matrix, and cut whole. With `cpu_offload` the layers' parts, the adapter, its
gradients and its moments live in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loradock.catalog import optimizers, storages
from loradock.catalog.engines import MODES
from loradock.facts import ModelFacts
from loradock.plan.memory import experts
from loradock.plan.memory.base import BYTES, RUNTIME_BYTES, widest_input, widest_matrix
from loradock.plan.memory.peft import (
    ADAPTER_BYTES,
    FRAGMENTATION,
    SCORES_IN_FLIGHT,
    SCORES_KEPT,
    Batch,
    beyond_mean,
    chunk_bytes,
    layer_bytes_per_token,
    logit_bytes,
    recurrent_share,
)

FLOAT = 4
GATHERED_LAYERS = 2
NCCL_BYTES = 400 << 20
"""Channels of a communicator. An assumption: 200 to 500 MiB a GPU are reported for 8 GPUs on one machine."""
STAGING_BYTES = 2 << 30
"""Beside weights that come from host memory: published runs need 0.7 to 4 GiB more than the parts explain."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How processes share a model: the mode, how many they are, and whether host memory takes the parts."""

    mode: str
    processes: int
    cpu_offload: bool = False

    @property
    def of_weights(self) -> int:
        """By how much the frozen weights are cut."""
        return self.processes if MODES[self.mode].cuts_weights else 1

    @property
    def of_gradients(self) -> int:
        """By how much gradients and optimiser state are cut."""
        return self.processes if MODES[self.mode].cuts_state else 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How weights are held and what computes; `checkpointed` of the layers are recomputed."""

    quantization: str
    double_quant: bool
    dtype: str
    rank: int
    optimizer: str
    checkpointed: int
    attention: str = "flash_attention_2"
    has_dropout: bool = False
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def storage(self) -> storages.Storage:
        """How the base's weights are held."""
        return storages.of(self.quantization)

    @property
    def weight_bits(self) -> float:
        """Bits of a packed weight, its scale left out."""
        return self.storage.weight_bits(8 * BYTES[self.dtype])

    @property
    def scale_bits(self) -> float:
        """Bits of the scales of a packed weight."""
        return self.storage.scale_bits(double_quant=self.double_quant)


def parts(model: ModelFacts, batch: Batch, *, setting: Setting, sharing: Sharing) -> dict[str, int]:
    """Bytes on one GPU by component, with `total` last."""
    on_gpu = 0 if sharing.cpu_offload else 1
    adapters = model.adapter_parameters(setting.rank)
    parts_by_name = {
        "base weights": packed_bytes(model, setting) * on_gpu // sharing.of_weights,
        "experts": expert_bytes(model, setting) * on_gpu // sharing.of_weights,
        "scales": int(linear_parameters(model) * setting.scale_bits / 8),
        "embedding and head": other_bytes(model, setting) // sharing.of_weights,
        "adapters and gradients": adapter_bytes(adapters, setting=setting, sharing=sharing) * on_gpu,
        "optimiser state": adapters * optimizers.named(setting.optimizer).device_bytes * on_gpu // sharing.of_gradients,
        **moving(model, setting, sharing),
        "activations": activation_bytes(model, batch, setting=setting),
        "logits": logit_bytes(model, batch, dtype=setting.dtype),
        "dequantised layer": widest_matrix(model) * BYTES[setting.dtype] * setting.storage.is_quantised,
        "runtime": setting.runtime_bytes,
    }
    if not model.experts:
        del parts_by_name["experts"]
    total = sum(parts_by_name.values())
    parts_by_name["fragmentation"] = int(total * (FRAGMENTATION - 1))
    return {**parts_by_name, "total": total + parts_by_name["fragmentation"]}


def host_bytes(model: ModelFacts, *, setting: Setting, sharing: Sharing) -> int:
    """Bytes of host memory that one process needs for what does not live on its GPU."""
    if not sharing.cpu_offload:
        return 0
    adapters = model.adapter_parameters(setting.rank)
    weights = (packed_bytes(model, setting) + expert_bytes(model, setting)) // sharing.of_weights
    moments = adapters * optimizers.named(setting.optimizer).device_bytes // sharing.of_gradients
    return weights + adapter_bytes(adapters, setting=setting, sharing=sharing) + moments


def linear_parameters(model: ModelFacts) -> int:
    """Weights of the linear layers."""
    return model.reached_parameters - model.expert_parameters


def packed_bytes(model: ModelFacts, setting: Setting) -> int:
    """The linear layers' weights, without scales."""
    return int(linear_parameters(model) * setting.weight_bits / 8)


def expert_bytes(model: ModelFacts, setting: Setting) -> int:
    """A mixture's experts, whose scales are cut and travel with them."""
    return int(model.expert_parameters * (setting.weight_bits + setting.scale_bits) / 8)


def layer_bytes(model: ModelFacts, setting: Setting) -> int:
    """What is gathered of a layer, one with experts where there are any: weights as they lie, and its adapters."""
    adapters = model.adapter_parameters(setting.rank)
    of_linears = replace(model, expert_targets=()).adapter_parameters(setting.rank)
    with_experts = expert_bytes(model, setting) + (adapters - of_linears) * FLOAT
    return (packed_bytes(model, setting) + of_linears * FLOAT) // max(1, model.layers) + (
        with_experts // max(1, experts.layers(model))
    )


def other_bytes(model: ModelFacts, setting: Setting) -> int:
    """Embedding, head and norms, in the compute dtype."""
    return (model.parameters - model.reached_parameters) * BYTES[setting.dtype]


def sent_bytes(model: ModelFacts, setting: Setting, sharing: Sharing) -> tuple[int, int]:
    """What a process gets from the others: bytes of weights a pass, and of gradients a step.

    Cut weights are gathered for the forward and again for the backward pass; gradients travel in float32.
    """
    share = (sharing.processes - 1) / sharing.processes
    whole = packed_bytes(model, setting) + expert_bytes(model, setting) + other_bytes(model, setting)
    weights = 2 * whole if sharing.of_weights > 1 else 0
    return int(weights * share), int(2 * model.adapter_parameters(setting.rank) * FLOAT * share)


def adapter_bytes(adapters: int, *, setting: Setting, sharing: Sharing) -> int:
    """float32 values, cut with the weights, and gradients; where values are whole, the copies that autocast keeps."""
    copies = ADAPTER_BYTES[setting.dtype] - 2 * FLOAT if sharing.of_weights == 1 else 0
    return adapters * (FLOAT + copies) // sharing.of_weights + adapters * FLOAT // sharing.of_gradients


def moving(model: ModelFacts, setting: Setting, sharing: Sharing) -> dict[str, int]:
    """What is whole for a while only, and what carries it."""
    adapters = model.adapter_parameters(setting.rank) * FLOAT // max(1, model.layers)
    layer = layer_bytes(model, setting)
    is_cut = sharing.of_weights > 1
    arriving = layer + 2 * adapters if is_cut else 0
    staged = STAGING_BYTES if sharing.cpu_offload else 0
    return {
        "gathered layers": GATHERED_LAYERS * layer * is_cut,
        "gathered head": model.vocabulary * model.hidden * BYTES[setting.dtype] * is_cut,
        "buffers": (NCCL_BYTES if sharing.processes > 1 else 0) + arriving + staged,
    }


def activation_bytes(model: ModelFacts, batch: Batch, *, setting: Setting) -> int:
    """Bytes kept from forward to backward: inputs of the layers that are recomputed, and the others whole.

    One that is recomputed is whole for that time; in flight is the gradient of the widest input, and its adapter's.
    """
    dtype, recomputed = setting.dtype, setting.checkpointed
    mask = 0 if setting.attention == "flash_attention_2" else batch.mask_elements * BYTES[dtype]
    scores = model.heads * batch.mask_elements * BYTES[dtype] if setting.attention == "eager" else 0
    layer = batch.tokens * layer_bytes_per_token(model, dtype=dtype, has_dropout=setting.has_dropout) + mask
    filling, share = chunk_bytes(model, batch, dtype=dtype), recurrent_share(model)
    layer += SCORES_KEPT * scores + share * filling
    inputs = batch.tokens * model.hidden * BYTES[dtype]
    in_flight = batch.tokens * widest_input(model) * (BYTES[dtype] + FLOAT) + SCORES_IN_FLIGHT * scores
    in_flight += int(batch.tokens * experts.in_flight_bytes_per_token(model, size=BYTES[dtype]))
    in_flight += batch.tokens * experts.router_bytes_per_token(model)
    total = layer + batch.tokens * beyond_mean(model, dtype=dtype) + (1 - share) * filling
    return int((model.layers - recomputed) * layer + recomputed * inputs + (total if recomputed else 0)) + in_flight
