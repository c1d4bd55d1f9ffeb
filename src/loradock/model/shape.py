"""ModelFacts from a config alone: the model is built on the meta device, so it takes no memory and no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loradock.catalog import storages
from loradock.catalog.storages import NF4
from loradock.config.schema import RunConfig
from loradock.errors import ModelError
from loradock.facts import UNREACHABLE_SHARE, ExpertShape, LinearShape, ModelFacts
from loradock.model import architecture, lengths, made_dense, names, prequantised, recurrence, source
from loradock.model.experts import layout
from loradock.model.opening import Opening
from loradock.model.targets import (
    check_experts,
    check_modules_to_save,
    check_patterns,
    check_rank,
    resolve_targets,
    with_rank,
)

if TYPE_CHECKING:
    from loradock.model.source import BaseModel


def inspect(base: BaseModel, config: RunConfig) -> ModelFacts:
    """Count layers and weights, resolve LoRA's targets, and refuse what quantisation or LoRA could not reach."""
    model = source.on_meta(base)
    storage = config.model.storage
    beyond = unreachable(model, has_experts=storage.takes_experts)
    linears = tuple(with_rank(layer, config.lora) for layer in linear_shapes(model))
    dense = held_dense(base, config, model, linears)
    experts = tuple(with_rank(matrix, config.lora) for matrix in expert_shapes(model) if storage.takes_experts)
    text = base.config.get_text_config(decoder=True)
    added = Opening.of(config).parameters(config, base, model)
    targets = resolve_targets(config.lora.targets, linears, model)
    facts = ModelFacts(
        **asdict(lengths.positions_of(base, config)),
        architecture=type(model).__name__,
        decoder=type(model.get_decoder()).__name__,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        linears=linears,
        targets=targets.linears,
        experts=experts,
        expert_targets=targets.experts,
        expert_names=targets.taken_for_experts,
        unreachable_parameters=sum(beyond.values()),
        unreachable_kinds=tuple(sorted(beyond, key=lambda kind: (-beyond[kind], kind))),
        weights_bytes=sum(file.stat().st_size for file in base.weight_files),
        has_sdpa=bool(getattr(model, "_supports_sdpa", True)),
        capped_heads=capped_heads(text),
        peculiarity=peculiarity(text),
        pack_limit=lengths.pack_limit(text),
        heads=getattr(text, "num_attention_heads", 0) or 0,
        has_clamped_gates=bool(getattr(text, "swiglu_limit", None)),
        normed_heads=normed_heads(model),
        left_out=architecture.left_out(model),
        recurrence=recurrence.of(model, text),
        is_prequantised=bool(prequantised.settings(base.config)),
        stored_as=stored.title if (stored := made_dense.format_of(base.config)) else None,
        dense_parameters=dense,
        **added,
    )
    recurrence.check_read_past(facts, model, quantization=config.model.quantization)
    check_coverage(facts, quantization=config.model.quantization)
    check_modules_to_save(config, model, facts)
    check_patterns(config.lora, facts)
    check_rank(config.lora, facts)
    check_experts(config.lora, facts)
    return facts


def held_dense(base: BaseModel, config: RunConfig, model: Any, linears: Sequence[LinearShape]) -> int:
    """Weights of linear layers in 16 bit in the files of a base in NF4. ModelError for a base that is not opened."""
    from transformers.pytorch_utils import Conv1D

    packed = prequantised.check(base.config, base.weight_files, config.model, directory=base.directory)
    if not prequantised.is_nf4(base.config):
        return 0
    if any(True for _ in layout.modules(model)) or any(isinstance(module, Conv1D) for module in model.modules()):
        kind = "a mixture of experts" if any(True for _ in layout.modules(model)) else "a model of Conv1D layers"
        raise ModelError(f"{base.directory} is {kind} in NF4, which is not opened", hint=prequantised.ORIGINAL)
    in_model = set(packed) | set(names.in_model(model, packed).values())
    return sum(layer.rows * layer.columns for layer in linears if packed and f"{layer.name}.weight" not in in_model)


def capped_heads(config: Any) -> int:
    """Query heads of a layer of a text model whose attention is soft-capped; 0 where it is not."""
    return config.num_attention_heads if getattr(config, "attn_logit_softcapping", None) else 0


NORMS_OF_HEADS = ("q_norm", "qk_norm", "query_layernorm")
"""How classes call the norm of queries, beside which keys have one, too."""


def normed_heads(model: Any) -> int:
    """Elements of queries, keys and values that go through a norm before attention, of a token in all layers."""
    import torch

    def width(attention: Any, name: str, axis: int) -> int:
        layer = getattr(attention, name, None)
        return layer.weight.shape[axis] if isinstance(layer, torch.nn.Linear) else 0

    normed = [each for each in model.modules() if any(getattr(each, name, None) for name in NORMS_OF_HEADS)]
    # What o_proj reads is as wide as all queries; q_proj may give a gate, too.
    return sum(width(each, "o_proj", 1) + width(each, "k_proj", 0) * (1 + hasattr(each, "v_norm")) for each in normed)


def peculiarity(config: Any) -> str | None:
    """What a text model's config asks for that few do: drops and noise, a look ahead, angles that hang on the input."""
    for name in ("attention_dropout", "resid_pdrop", "embd_pdrop", "router_jitter_noise", "clip_qkv"):
        if share := getattr(config, name, None):
            return f"the model has {name} {share}"
    if getattr(config, "use_bidirectional_attention", False) not in (None, False, "vision"):  # Gemma 4: of images
        return "the model's attention is not causal"
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    if any("dynamic" in str(kind.get("rope_type")) and not kind.get("alpha") for kind in kinds):
        return "the model's rotary embedding depends on the length of the input"
    return None


def linear_shapes(model: Any) -> tuple[LinearShape, ...]:
    """Every linear layer but the output head, in the model's order."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return tuple(
        LinearShape(name=name, rows=module.weight.shape[0], columns=module.weight.shape[1])
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    )


def expert_shapes(model: Any) -> tuple[ExpertShape, ...]:
    """Every matrix of fused experts that transformers' interface computes, in the model's order."""
    return tuple(
        ExpertShape(
            name=matrices.name,
            count=matrices.experts,
            active=layout.used_by_a_token(model, matrices),
            rows=matrices.outputs,
            columns=matrices.inputs,
        )
        for matrices in layout.matrices(model)
    )


def unreachable(model: Any, *, has_experts: bool = False) -> dict[str, int]:
    """{kind: weights} of matrices that are neither linear nor embedding, as fused experts are.

    A kind is the end of the names: module and parameter (`experts.gate_up_proj`). `has_experts`: the experts that
    `model.experts` computes are reached.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    reached = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding, Conv1D))
    }
    reached |= {id(bias) for bias in layout.biases(model)}
    if has_experts:
        reached |= {id(matrices.parameter) for matrices in layout.matrices(model)}
    parameters_of: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if is_matrix(parameter) and id(parameter) not in reached:
            kind = ".".join(name.split(".")[-2:])
            parameters_of[kind] = parameters_of.get(kind, 0) + parameter.numel()
    return parameters_of


def is_matrix(parameter: Any) -> bool:
    """Whether a parameter maps a vector to another: norms do not, nor a convolution that takes each channel alone."""
    return parameter.dim() >= 2 and parameter.shape[1] > 1


def check_coverage(facts: ModelFacts, *, quantization: str) -> None:
    """Refuse a model of which quantisation would silently leave more than 1 % of the inner weights in 16 bit."""
    if not storages.of(quantization).is_quantised or facts.unreachable_share <= UNREACHABLE_SHARE:
        return
    is_of_experts = "expert" in facts.unreachable_words
    takes_experts = storages.of(quantization).takes_experts
    own = ", which its class does not compute by transformers' interface for experts" if takes_experts else ""
    raise ModelError(
        f"{quantization} would cover only {1 - facts.unreachable_share:.0%} of {facts.architecture}'s inner weights: "
        f"{facts.unreachable_parameters:,} are outside linear layers ({facts.unreachable_words})"
        f"{own if is_of_experts else ''}",
        hint=f"--set model.quantization={NF4.name}, which takes the experts of most mixtures"
        if is_of_experts and not takes_experts
        else "--set model.quantization=none, if the GPU has the memory",
    )
