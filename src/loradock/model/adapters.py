"""The adapter: LoRA through peft, kept in float32, and loaded again from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loradock.config.schema import RunConfig

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

    The random initialisation is seeded by `train.seed` alone.
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
    adapted = get_peft_model(model, settings)
    for parameter in trainable(adapted):
        parameter.data = parameter.data.to(torch.float32)
    return adapted


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
