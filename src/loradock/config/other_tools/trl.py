"""TRL's `trl sft --config FILE`."""

from __future__ import annotations

from loradock.config.other_tools import peft, precision, trainer
from loradock.config.other_tools.base import (
    Tool,
    Translation,
    as_list,
    as_mapping,
    if_on,
    is_on,
    later,
    put_configuration,
    put_source,
    to,
    to_number,
    to_truth,
    words,
)
from loradock.config.other_tools.preference import RULES, preferring_by_loss


def sources(translation: Translation) -> None:
    """One data set, or a mixture of several."""
    split, column = translation.get("dataset_train_split"), translation.get("dataset_text_field")
    fields = {"text": column} if column and column != "text" else {}
    if name := translation.get("dataset_name"):
        put_source(translation, 0, "dataset_name", str(name), fields=fields, split=None if split == "train" else split)
        put_configuration(translation, 0, "dataset_config", str(name), translation.get("dataset_config"))
    for index, value in enumerate(as_list(translation.get("datasets") or [])):
        entry = as_mapping(value) or {"path": value}
        origin, split = f"datasets.{index}", entry.get("split")
        path = str(entry.get("path") or "")
        put_source(translation, index, origin, path, split=None if split == "train" else split)
        put_configuration(translation, index, f"{origin}.name", path, entry.get("name"))
        if entry.get("columns"):
            translation.leave(f"{origin}.columns", "the columns that a format names are read; data.sources.N.ignore")


def kind(translation: Translation) -> None:
    """An adapter; and what is learned."""
    if not is_on(translation.get("use_peft")):
        translation.leave("use_peft", "not on, which trains all weights; here a LoRA adapter is trained")
    if translation.given.get("packing") is not None:
        translation.put("train.packing", is_on(translation.get("packing")), "packing")
    elif is_on(translation.get("padding_free")):
        translation.put("train.packing", True, "padding_free")
    if translation.given.get("completion_only_loss") is False:
        translation.put("data.loss", "all", "completion_only_loss")
    elif is_on(translation.get("assistant_only_loss")):
        translation.put("data.loss", "assistant", "assistant_only_loss")
    if value := translation.get("max_length", "max_seq_length"):
        translation.put("data.max_length", value, "max_length", "max_seq_length")


TOOL = Tool(
    name="trl",
    title="TRL",
    marks=words(
        "dataset_name dataset_train_split dataset_test_split use_peft lora_target_modules "
        "model_name_or_path lora_r packing dataset_text_field use_bnb_nested_quant bnb_4bit_quant_type "
        "dataset_config attn_implementation assistant_only_loss"
    ),
    rules=trainer.RULES
    | RULES
    | peft.rules(rank="lora_r")
    | {
        **dict.fromkeys(
            words(
                "use_peft packing padding_free completion_only_loss assistant_only_loss dataset_name datasets "
                "dataset_config dataset_train_split dataset_text_field load_in_4bit load_in_8bit bnb_4bit_quant_type "
                "dtype use_bnb_nested_quant torch_dtype max_length max_seq_length loss_type "
                "loss_weights center_rewards_coefficient"
            ),
            later,
        ),
        "model_name_or_path": to("model.name"),
        "model_revision": to("model.revision"),
        "label_smoothing": to_number("preference.label_smoothing", above=0),
        "chat_template_path": to("data.template"),
        "lora_target_modules": peft.targets,
        "lora_modules_to_save": peft.modules_to_save,
        "use_cpu": if_on("device", "cpu"),
        "warmup_ratio": later,
        "seed": to_number("train.seed"),
        "gradient_checkpointing": to_truth("train.checkpointing"),
    },
    finish=(
        kind,
        sources,
        preferring_by_loss,
        precision.quantised(),
        precision.dtype("dtype", "torch_dtype"),
        trainer.batches(micro="per_device_train_batch_size"),
        trainer.schedule(),
        trainer.cut_rows,
        *trainer.FINISH,
    ),
    defaults=trainer.DEFAULTS
    | {
        "learning_rate": 2e-5,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "max_length": 1024,
        "lora_target_modules": "all-linear",
    },
    needless=trainer.NEEDLESS | words("attn_implementation packing_strategy pad_to_multiple_of lora_task_type"),
    lacking=trainer.LACKING
    | {
        "dataset_test_split": "data.validation takes a share of the rows or a file: --set data.validation=0.05",
        "dataset_streaming": "rows are prepared once and read from the disk, in constant memory",
    },
)
