"""The adapter: LoRA through peft, kept in float32, and loaded again from a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loradock.config.schema import RunConfig
from loradock.errors import ModelError, NoCheckpoint
from loradock.model import adapter_tensors, architecture, new_tokens, published
from loradock.model.experts import layout, peft_layers
from loradock.model.opening import Opening
from loradock.model.shape import linear_shapes
from loradock.model.targets import ALL_LINEAR, Targets, resolve_targets

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

INITIALISATIONS = {
    "default": True,
    "gaussian": "gaussian",
    "pissa": "pissa",
    "olora": "olora",
    "orthogonal": "orthogonal",
}
BASE_CHANGING = ("pissa", "olora")


def attach(model: Any, config: RunConfig, *, base: BaseModel) -> Any:
    """Give the frozen base its adapter: a PeftModel whose trainable weights are float32.

    The random initialisation is seeded by `train.seed` alone. Raises ModelError where peft refuses a layer.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import set_seed

    lora, opening = config.lora, Opening.of(config)
    set_seed(config.train.seed)
    expected = resolve_targets(lora.targets, linear_shapes(model), model)
    modules, parameters = _targets(model, config, expected, base=base)
    kinds = sorted({layer.name.rpartition(".")[2] for layer in linear_shapes(model)})
    if opening.has_head:  # "all-linear" would be the head, too; PEFT saves it whole by its task
        modules = sorted({name.rpartition(".")[2] for name in expected.linears}) if modules == ALL_LINEAR else modules
    rows = opening.put(model, base)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  peft's own type is narrower than its use
        rank_pattern=dict(lora.rank_pattern),
        alpha_pattern=dict(lora.alpha_pattern),  # pyright: ignore[reportArgumentType]
        lora_dropout=lora.dropout,
        target_modules=modules,
        target_parameters=parameters,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        init_lora_weights=INITIALISATIONS[lora.init],
        modules_to_save=list(lora.modules_to_save) or None,
        trainable_token_indices=rows,
        ensure_weight_tying=bool(lora.modules_to_save) and bool(base.config.get_text_config().tie_word_embeddings),
        base_model_name_or_path=str(base.directory),
        bias="none",
        task_type=opening.task,
    )
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as refused:
        if ours := refused_by_peft(str(refused), kinds=kinds, name=base.name):
            raise ours from refused
        raise
    if rows:
        new_tokens.settle(adapted)
    for parameter in trainable(adapted):
        parameter.data = parameter.data.to(torch.float32)
    check_adapted(adapted, expected, name=base.name)
    published.check(base, settings, state(adapted).keys())
    return adapted


def check_adapted(adapted: Any, expected: Targets, *, name: str) -> None:
    """ModelError unless PEFT put an adapter on what was planned, and on nothing else: it has rules of its own."""
    from peft.tuners.lora import LoraLayer

    found = {
        f"{adapter_tensors.original(f'{path}.')}{getattr(layer, 'parameter_name', '')}".rstrip(".")
        for path, layer in adapted.named_modules()
        if isinstance(layer, LoraLayer)
    }
    planned = {*expected.linears, *expected.experts}
    if differing := sorted(found ^ planned):
        where = "has one that was not planned" if differing[0] in found else "has none"
        raise ModelError(
            f"PEFT adapts {len(found)} layers of {name}, and {len(planned)} were planned: {differing[0]} {where}",
            hint="name the targets in full (lora.targets), and please report the model",
        )


def _targets(
    model: Any, config: RunConfig, targets: Targets, *, base: BaseModel
) -> tuple[str | list[str], list[str] | None]:
    """PEFT's target_modules and target_parameters.

    Of a part of a published class a pattern, which means no layer of the other parts there: these have layers of the
    same names (q_proj of a vision tower).
    """
    setting = config.lora.targets
    linears = linear_shapes(model)
    parameters = _shortest(targets.experts, [matrices.name for matrices in layout.matrices(model)]) or None
    if peft_layers.taken_for_experts(model):
        return list(targets.linears), parameters
    if not architecture.is_wrapper(base.config):
        if not isinstance(setting, str) and not targets.experts and ALL_LINEAR not in setting:
            return list(setting), parameters
        is_whole = len(targets.linears) == len(linears)
        return (ALL_LINEAR if is_whole else list(targets.linears)), parameters
    part = f"{architecture.decoder_name(model)}."
    kinds = sorted({name.rpartition(".")[2] for name in targets.linears if name.startswith(part)})
    # The kinds stand in the first and last parentheses: vLLM's `is_regex_target_modules` reads them there.
    pattern = rf"{re.escape(part)}.*\b({'|'.join(map(re.escape, kinds))})"
    meant = tuple(layer.name for layer in linears if re.fullmatch(pattern, layer.name))
    return (pattern if meant == targets.linears else list(targets.linears)), parameters


def _shortest(targets: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """Names that PEFT takes for these parameters alone: module and parameter, else what they are called in full."""
    ends = sorted({".".join(name.split(".")[-2:]) for name in targets})
    meant = [name for name in parameters if any(name.endswith(f".{end}") for end in ends)]
    return ends if sorted(meant) == sorted(targets) else list(targets)


def refused_by_peft(message: str, *, kinds: Sequence[str], name: str) -> ModelError | None:
    """What to say where peft's words name kinds of linear layer, those that are left as the remedy; else None."""
    unsupported = [kind for kind in kinds if f"'{kind}'" not in message]
    if len(unsupported) == len(kinds):
        return None
    first = message.strip().splitlines()[0]
    return ModelError(
        f"PEFT does not support an adapter on {name}: {first}", hint=f"--set lora.targets=[{','.join(unsupported)}]"
    )


def trainable(model: Any) -> list[Any]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def tensors(model: Any) -> dict[str, Any]:
    """Every parameter and buffer by its name, as `state_dict()` gives them but for the hooks of the modules.

    FSDP's hooks put aside what a process has gathered. One that calls them alone, because it alone writes, gathers
    again in its next forward pass while the others continue without it.
    """
    tensors_by_name = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in tensors_by_name}


def state(model: Any) -> dict[str, Any]:
    """The adapter's tensors by the names they are saved under. They share their memory with the model's."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, state_dict=tensors(model), save_embedding_layers=False)


def restore(model: Any, weights: bytes) -> None:
    """Put adapter weights (the bytes of a safetensors file) into the model, in place, dtypes unchanged.

    No hook of the model's is called, see `tensors`. Raises NoCheckpoint where they are another adapter's.
    """
    from safetensors.torch import load

    saved, current = load(weights), state(model)
    shapes, expected = (
        {name: tensor.shape for name, tensor in tensors_by_name.items()} for tensors_by_name in (saved, current)
    )
    if differing := sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)):
        raise NoCheckpoint(
            f"the checkpoint's adapter differs: {len(differing)} tensors differ in name or shape, first {differing[0]}",
            hint="use --fresh or another --output to start a new run",
        )
    for name, tensor in current.items():
        tensor.copy_(saved[name])
