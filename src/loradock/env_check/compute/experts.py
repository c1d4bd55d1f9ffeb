"""Three steps of QLoRA on small mixtures of experts, with adapters on the experts, against their float64 twins.

One for each way in which transformers lays experts out: gate and up in one matrix, and the same transposed, with
biases and interleaved (gpt-oss). Attention is proven by `training`; here it is eager.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok
from loradock.env_check.compute import tiny_model
from loradock.env_check.compute.exact_attention import cases
from loradock.env_check.compute.places import Device, at_each, first_line, is_full
from loradock.env_check.compute.training import RATE, SCALE, STEPS, Target, fault
from loradock.env_check.remedies import as_locked
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import nf4
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

    from loradock.config.sections.model import ModelConfig

HIDDEN, INNER, EXPERTS, CHOSEN, RANK = 64, 64, 4, 2, 4
PULL = 2.0
"""Of a token towards its experts, in its embedding: no rounding changes which ones a router chooses."""
FIRST_LOGIT, SECOND_LOGIT = 1.0, 0.5
LAYOUTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": EXPERTS, "moe_intermediate_size": INNER, "norm_topk_prob": True},
    "gpt_oss": {"num_local_experts": EXPERTS, "intermediate_size": INNER},
}
"""Classes of transformers', by `model_type`, and what they need besides."""


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """At the run's first place, where the model is a mixture and its storage takes experts (a run refuses others)."""
    if not plan.has_experts:
        return [ok("the model has no experts")]
    from loradock.config.sections.model import ModelConfig

    model_config = plan.config.model if plan.config else ModelConfig()
    if not model_config.storage.takes_experts:
        return [ok(f"experts are not stored as {model_config.quantization}")]
    remedy = as_locked(host, "torch", "transformers", "peft", "bitsandbytes")
    return at_each(host, facts, plan, lambda place: _at(place, model_config, remedy), is_first_alone=True)


def _at(place: Device, model_config: ModelConfig, remedy: str) -> list[Finding]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    faults = {kind: attempt(kind, model_config, place) for kind in LAYOUTS}
    findings = [
        error(f"training a small {kind} on {place}: {what}", remedy=remedy) for kind, what in faults.items() if what
    ]
    stored = "NF4" if model_config.storage.is_dequantised else "unquantised"
    return findings or [
        ok(f"small mixtures with {stored} experts on {place} train as in float64: {', '.join(LAYOUTS)}")
    ]


def attempt(kind: str, model_config: ModelConfig, place: Device) -> str:
    """What is wrong with the training of one kind of mixture, "" where nothing is. Raises what a full GPU says."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            weights = make(kind, Path(folder), place)
            target = target_of(kind, weights, is_quantised=model_config.storage.is_dequantised)
            return trained(adapted(Path(folder), model_config, place), place, target)
        except RuntimeError as failure:  # of a kernel; anything else is no fault of this machine's
            if is_full(failure):
                raise
            return f"it fails: {first_line(failure)}"


def architecture(kind: str) -> Any:
    """The transformers config."""
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "vocab_size": tiny_model.VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": tiny_model.LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts_per_tok": CHOSEN,
        "initializer_range": tiny_model.SPREAD * HIDDEN**-0.5,
        "tie_word_embeddings": False,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return AutoConfig.for_model(kind, **settings, **LAYOUTS[kind])


def make(kind: str, folder: Path, place: Device) -> dict[str, torch.Tensor]:
    """Write a random mixture to the folder, in the place's dtype; returns its weights by name."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(architecture(kind)).to(place.torch_dtype)
    for name, parameter in model.named_parameters():
        if ".experts." in name:  # biases are zero otherwise, and a lost one would not show
            parameter.data.normal_(std=tiny_model.SPREAD * HIDDEN**-0.5)
        if is_inner(name, parameter):
            parameter.data = nf4.clear_of_ties(parameter.data)
    settle_routing(model)
    model.save_pretrained(folder)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def settle_routing(model: Any) -> None:
    """Let token t go to the experts t and t + 1, counted round: the first dimensions of its embedding say so."""
    import torch

    embedding = model.get_input_embeddings().weight.data
    direction = torch.arange(len(embedding)) % EXPERTS
    embedding[:, :EXPERTS] = PULL * torch.nn.functional.one_hot(direction, EXPERTS)
    logits = FIRST_LOGIT * torch.eye(EXPERTS) + SECOND_LOGIT * torch.eye(EXPERTS).roll(1, dims=0)
    for name, parameter in model.named_parameters():
        if is_router(name) and parameter.dim() == 2:
            parameter.data.zero_()
            parameter.data[:, :EXPERTS] = logits


def is_router(name: str) -> bool:
    """Whether a weight of this name chooses among experts."""
    return name.rpartition(".")[0].endswith(("mlp.gate", "mlp.router"))


def is_inner(name: str, weight: torch.Tensor) -> bool:
    """True for the weights that quantisation reaches."""
    is_of_experts = weight.dim() == 3 and ".experts." in name
    return is_of_experts or (tiny_model.is_inner(name, weight) and not is_router(name) and "bias" not in name)


def adapted(folder: Path, model_config: ModelConfig, place: Device) -> Any:
    """The mixture of the folder as a run loads it, with adapters in float32, the same ones whatever the storage."""
    import torch

    return with_adapters(tiny_model.loaded(folder, model_config, place), torch.float32)


def with_adapters(model: Any, dtype: torch.dtype) -> Any:
    """Adapters on attention and on every expert of a frozen mixture: random, from a seed of their own."""
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(False)
    settings = LoraConfig(
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        bias="none",
        task_type="CAUSAL_LM",
    )
    return tiny_model.drawn(get_peft_model(model, settings), dtype)


def target_of(kind: str, weights: Mapping[str, torch.Tensor], *, is_quantised: bool) -> Target:
    """The first step of the same mixture on the CPU in float64, by transformers' own loop over experts."""
    import torch
    from transformers import AutoModelForCausalLM

    stored = {
        name: nf4.rebuilt(weight) if is_quantised and is_inner(name, weight) else weight.double()
        for name, weight in weights.items()
    }
    model = AutoModelForCausalLM.from_config(
        architecture(kind), attn_implementation="eager", experts_implementation="eager"
    )
    model.to(torch.float64).load_state_dict(stored)
    twin = with_adapters(model, torch.float64)
    loss = tiny_model.loss_of(twin, inputs("cpu"))
    loss.backward()
    gradient = torch.cat([adapter.grad.flatten() for adapter in tiny_model.adapters(twin)])
    return Target(loss=float(loss.detach()), gradient=gradient)


def inputs(device: str) -> dict[str, torch.Tensor]:
    """Two rows, each one document."""
    plain, *_ = cases(AttentionShape())
    return tiny_model.batch(plain, device)


def trained(model: Any, place: Device, target: Target) -> str:
    """What is wrong with three steps, "" where nothing is."""
    import torch

    adapters: Sequence[Any] = tiny_model.adapters(model)
    optimiser = torch.optim.AdamW(adapters, lr=RATE)
    tensors, kind = inputs(place.device), "cuda" if place.is_gpu else "cpu"
    scale = SCALE if place.dtype == "float16" else 1.0
    losses: list[float] = []
    gradient = None
    for _ in range(STEPS):
        with torch.autocast(kind, dtype=place.torch_dtype, enabled=place.dtype != "float32"):
            loss = tiny_model.loss_of(model, tensors)
        model.zero_grad()
        (loss * scale).backward()
        for adapter in adapters:
            adapter.grad /= scale
        losses.append(float(loss.detach()))
        if gradient is None:
            gradient = torch.cat([adapter.grad.flatten() for adapter in adapters]).cpu().double()
        optimiser.step()
    place.finish()
    return fault(losses, gradient, target, place.dtype)


CHECK = Check(
    name="experts",
    group="compute",
    proves="Where the model has experts: three QLoRA steps on small mixtures of experts, with adapters on the experts, "
    "match the float64 reference.",
    look=look,
    level="compute",
    limit_seconds=90,
    depends_on=(*LOADED, "device", "model"),
)
