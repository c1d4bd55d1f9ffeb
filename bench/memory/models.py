"""Models whose memory is measured: the fast engine's own code over tensors without content (the meta device).

Transformers' model from the published config, bitsandbytes' layers, PEFT's adapters, and the fast engine with the
kernels and the attention of a card. Triton's launches are left out: they give nothing back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch

from loradock.facts import LinearShape, ModelFacts
from loradock.model.shape import capped_heads
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.kernels import launch

CODES = 256
"""Entries of the table that quantises the scales of blocks."""


@contextlib.contextmanager
def no_launches() -> Iterator[None]:
    """Triton kernels do nothing, so that tensors need no content."""
    real = launch.launch
    launch.launch = lambda *_args, **_constexprs: None
    try:
        yield
    finally:
        launch.launch = real


def adapted(settings: dict[str, Any], *, dtype: torch.dtype, device: str, rank: int = 16) -> Any:
    """A PeftModel of this config's values, all its linear layers NF4 (double quantisation) with an adapter."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=dtype)
        model.requires_grad_(False)
        quantise(model, dtype=dtype)
        model.is_loaded_in_4bit = True
        peft = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    for parameter in peft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return peft


def facts(model: Any, *, name: str) -> ModelFacts:
    """What the memory model knows of a PeftModel with adapters on all its linear layers."""
    from bitsandbytes.nn import Linear4bit

    base = model.get_base_model()
    config = base.config
    linears = tuple(
        LinearShape(name=key.replace(".base_layer", ""), rows=shape[0], columns=shape[1])
        for key, module in base.named_modules()
        if isinstance(module, Linear4bit)
        for shape in [module.weight.quant_state.shape]
    )
    inside = sum(each.rows * each.columns for each in linears)
    others = sum(p.numel() for key, p in base.named_parameters() if "lora_" not in key and "base_layer" not in key)
    return ModelFacts(
        name=name,
        architecture=type(base).__name__,
        decoder=type(base.get_decoder()).__name__,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        parameters=inside + others,
        linears=linears,
        targets=tuple(each.name for each in linears),
        unreachable_parameters=0,
        capped_heads=capped_heads(config),
    )


def quantise(model: Any, *, dtype: torch.dtype, device: str | None = None, but: Collection[str] = frozenset()) -> None:
    """Put NF4 layers without content in the place of all linear ones but the head and those of these names.

    On their own device, or on this one.
    """
    from bitsandbytes.nn import Linear4bit
    from bitsandbytes.nn.modules import Params4bit

    kept = {id(model.get_output_embeddings()), *(id(model.get_submodule(name)) for name in but)}
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if not isinstance(module, torch.nn.Linear) or id(module) in kept:
                continue
            place = torch.device(device) if device else module.weight.device
            state = nf4_state(module.weight.shape, dtype=dtype, device=place)
            packed = torch.empty(module.weight.numel() // 2, 1, dtype=torch.uint8, device=place)
            layer = Linear4bit(1, 1, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta")
            layer.in_features, layer.out_features = module.in_features, module.out_features
            layer.weight = Params4bit(
                packed, requires_grad=False, quant_state=state, quant_type="nf4", bnb_quantized=True
            )
            layer.bias = module.bias
            setattr(parent, name, layer)


def nf4_state(shape: torch.Size, *, dtype: torch.dtype, device: torch.device) -> Any:
    """What bitsandbytes keeps beside the packed weights of a matrix: scales of 64, themselves quantised by 256."""
    from bitsandbytes.functional import QuantState

    blocks = -(-shape.numel() // 64)

    def table(entries: int) -> torch.Tensor:
        return torch.empty(entries, dtype=torch.float32, device=device)

    scales = QuantState(absmax=table(-(-blocks // 256)), blocksize=256, code=table(CODES), dtype=torch.float32)
    return QuantState(
        absmax=torch.empty(blocks, dtype=torch.uint8, device=device),
        shape=shape,
        code=table(16),
        blocksize=64,
        quant_type="nf4",
        dtype=dtype,
        offset=torch.empty((), dtype=torch.float32, device=device),
        state2=scales,
    )


def flat_batch(tokens: int, *, document: int, device: str, vocabulary: int = 1000) -> FlatBatch:
    """A micro-batch of documents of `document` tokens, in which every position is supervised but each one's last."""
    bounds = np.array([*range(0, tokens, document), tokens], dtype=np.int32)
    places = np.setdiff1d(np.arange(tokens), bounds[1:] - 1)
    positions = np.arange(tokens) - np.repeat(bounds[:-1], np.diff(bounds))

    def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=dtype, device=device)

    ids = np.random.default_rng(0).integers(0, vocabulary, tokens + 1)
    return FlatBatch(
        ids=tensor(ids[:-1], torch.int64),
        positions=tensor(positions, torch.int32),
        documents=Documents(
            bounds=tuple(bounds.tolist()), cu_seqlens=tensor(bounds, torch.int32), longest=min(document, tokens)
        ),
        rows=tensor(places, torch.int64),
        slots=tensor(places, torch.int64),
        targets=tensor(ids[places + 1], torch.int64),
        weights=tensor(np.ones(len(places)), torch.float32),
    )
