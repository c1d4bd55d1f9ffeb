"""The keyword arguments of an unsloth notebook: from_pretrained, get_peft_model and the trainer's, flat or by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from loradock.config.other_tools import peft, rope, trainer
from loradock.config.other_tools.base import Tool, Translation, is_on, later, put_source, to, to_number, to_truth, words

DATA = ("dataset_name", "dataset", "data_files", "train_dataset")


MAPPINGS = ("lr_scheduler_kwargs", "rank_pattern", "alpha_pattern", "rope_scaling")
"""Arguments that are mappings themselves."""


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that stand by the name of their function, on one level."""
    level: dict[str, Any] = {}
    for name, value in values.items():
        is_call = isinstance(value, dict) and name not in MAPPINGS
        level |= flat(cast("dict[str, Any]", value)) if is_call else {name: value}
    return level


def sources(translation: Translation) -> None:
    """What the notebook loads, and what is learned of it."""
    name = next((name for name in DATA if translation.given.get(name)), None)
    if name:
        column = translation.get("dataset_text_field")
        fields = {"text": column} if column not in (None, "text") else {}
        split = translation.get("split")
        put_source(
            translation, 0, name, str(translation.get(name)), fields=fields, split=None if split == "train" else split
        )
    if is_on(translation.get("train_on_responses_only")):
        translation.put("data.loss", "assistant", "train_on_responses_only")
    if translation.given.get("packing") is not None:
        translation.put("train.packing", is_on(translation.get("packing")), "packing")
    if is_on(translation.get("full_finetuning")):
        translation.leave("full_finetuning", "only LoRA adapters are trained")
    if value := translation.get("max_seq_length", "max_length"):
        translation.put("data.max_length", value, "max_seq_length", "max_length")


TOOL = Tool(
    name="unsloth",
    title="unsloth",
    flatten=flat,
    marks=words(
        "model_name max_seq_length r use_gradient_checkpointing random_state loftq_config load_in_4bit "
        "finetune_language_layers target_modules use_rslora from_pretrained get_peft_model "
        "FastLanguageModel full_finetuning"
    ),
    rules=trainer.RULES
    | peft.rules(rank="r")
    | {
        **dict.fromkeys(
            frozenset(DATA)
            | words(
                "load_in_4bit load_in_8bit dtype dataset_text_field split packing max_seq_length max_length "
                "train_on_responses_only full_finetuning load_in_16bit"
            ),
            later,
        ),
        "model_name": to("model.name"),
        "revision": to("model.revision"),
        "target_modules": peft.targets,
        "rope_scaling": rope.scaling,
        "modules_to_save": peft.modules_to_save,
        "use_gradient_checkpointing": to_truth("train.checkpointing"),
        "random_state": to_number("train.seed"),
        "seed": to_number("train.seed"),
    },
    finish=(
        sources,
        trainer.quantised(),
        trainer.dtype("dtype"),
        trainer.batches(micro="per_device_train_batch_size"),
        trainer.schedule(),
        trainer.cut_rows,
        *trainer.FINISH,
    ),
    defaults={name: value for name, value in trainer.DEFAULTS.items() if name != "seed"}
    | {
        "load_in_4bit": True,
        "max_seq_length": 2048,
        "r": 16,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "random_state": 3407,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
    needless=trainer.NEEDLESS
    | words(
        "fast_inference gpu_memory_utilization max_lora_rank finetune_language_layers "
        "finetune_attention_modules finetune_mlp_modules instruction_part response_part"
    ),
    lacking=trainer.LACKING
    | {"loftq_config": "lora.init has no LoftQ", "finetune_vision_layers": "only the language model is trained"},
)
