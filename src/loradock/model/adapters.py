"""The adapter: LoRA through peft, kept in float32, and loaded again from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loradock.config.schema import RunConfig
from loradock.errors import ModelError
from loradock.model.shape import linear_shapes

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

    lora = config.lora
    set_seed(config.train.seed)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  peft's own type is narrower than its use
        lora_dropout=lora.dropout,
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        init_lora_weights=INITIALISATIONS[lora.init],
        modules_to_save=list(lora.modules_to_save) or None,
        ensure_weight_tying=bool(lora.modules_to_save) and bool(base.config.get_text_config().tie_word_embeddings),
        base_model_name_or_path=str(base.directory),
        bias="none",
        task_type="CAUSAL_LM",
    )
    kinds = sorted({layer.name.rpartition(".")[2] for layer in linear_shapes(model)})
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as refused:
        if ours := refused_by_peft(str(refused), kinds=kinds, name=base.name):
            raise ours from refused
        raise
    for parameter in trainable(adapted):
        parameter.data = parameter.data.to(torch.float32)
    return adapted


def refused_by_peft(told: str, *, kinds: Sequence[str], name: str) -> ModelError | None:
    """What to say where peft's words name kinds of linear layer, those that are left as the remedy; else None."""
    others = [kind for kind in kinds if f"'{kind}'" not in told]
    if len(others) == len(kinds):
        return None
    first = told.strip().splitlines()[0]
    return ModelError(f"peft puts no adapter on {name}: {first}", hint=f"--set lora.targets=[{','.join(others)}]")


def trainable(model: Any) -> list[Any]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def restore(model: Any, weights: bytes) -> None:
    """Put adapter weights (the bytes of a safetensors file) into the model, in place, dtypes unchanged."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load

    set_peft_model_state_dict(model, load(weights))


def fingerprint(model: Any) -> str:
    """sha256 over the trainable weights, in order: equal bytes, equal adapters."""
    import hashlib

    digest = hashlib.sha256()
    for parameter in trainable(model):
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
