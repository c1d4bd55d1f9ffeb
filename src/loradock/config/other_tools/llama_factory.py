"""LLaMA-Factory's configuration, with the dataset_info.json that its names of data sets are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from loradock.config.other_tools import peft, precision, rope, trainer
from loradock.config.other_tools.base import (
    Tool,
    Translation,
    as_list,
    as_number,
    by_word,
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
from loradock.config.other_tools.preference import RULES, preferring
from loradock.files import regular

TEMPLATES = {
    **{name: name for name in ("alpaca", "zephyr", "llama2", "llama3", "gemma", "mistral", "chatml")},
    "phi": "phi3",
    "default": None,
}
INFO = "dataset_info.json"
TOOL_COLUMNS = ("tools", "functions")
"""Columns of definitions that rows are read with."""
COLUMNS = {
    "alpaca": {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "system": "system",
        "history": "history",
    },
    "sharegpt": {"messages": "conversations", "system": "system"},
}
"""By their formatting: their column's role -> the field of our format of that name."""
STAGES = ("sft", "pt")
RANKED = ("chosen", "rejected")


def datasets(translation: Translation) -> None:
    """Each name as dataset_info.json has it."""
    folder = str(translation.get("dataset_dir") or "data")
    places = [Path(folder), translation.folder / folder]
    place = next((place for place in places if (place / INFO).is_file()), places[0])
    info = _info(place / INFO)
    for index, name in enumerate(as_list(translation.get("dataset") or [])):
        entry = info.get(str(name))
        if entry is None:
            why = f"{place / INFO} has no {name}" if info else f"{place / INFO} is not there to say what {name} is"
            translation.leave("dataset", f"{why}: --set data.sources.{index}.path=FILE")
        else:
            _dataset(translation, index, f"dataset {name}", entry, place)
    for name in as_list(translation.get("eval_dataset") or []):
        file = info.get(str(name), {}).get("file_name")
        if file:
            translation.put("data.validation", str(place / file), "eval_dataset")
        else:
            translation.leave("eval_dataset", f"{place / INFO} names no file of {name}: --set data.validation=FILE")


def _info(file: Path) -> dict[str, dict[str, Any]]:
    try:
        return cast("dict[str, dict[str, Any]]", json.loads(regular.read_text(file)))
    except (OSError, ValueError):
        return {}


def _dataset(translation: Translation, index: int, origin: str, entry: dict[str, Any], place: Path) -> None:
    formatting, columns = str(entry.get("formatting", "alpaca")), dict(entry.get("columns") or {})
    tags: dict[str, Any] = entry.get("tags") or {}
    is_openai = formatting in ("openai", "sharegpt") and (tags.get("role_tag") == "role" or formatting == "openai")
    names = {"messages": "messages", "system": "system"} if is_openai else COLUMNS.get(formatting, {})
    fields = {names[role]: column for role, column in columns.items() if names.get(role) not in (None, column)}
    if (tools := columns.pop("tools", "tools")) not in TOOL_COLUMNS:
        translation.leave(f"{origin}: columns", f"tools: definitions are read from a column `tools`: rename {tools}")
    if other := sorted(
        role for role in columns if role not in (*names, "kto_tag", *(RANKED if entry.get("ranking") else ()))
    ):
        translation.leave(f"{origin}: columns", f"{', '.join(other)}: only text is learned")
    if entry.get("ranking"):
        fields |= {name: columns[name] for name in RANKED if columns.get(name) not in (None, name)}
    if entry.get("num_samples"):
        translation.leave(f"{origin}: num_samples", "head -n N of its file")
    hub = entry.get("hf_hub_url")
    path = f"hub:{hub}" if hub else str(place / str(entry.get("file_name", "")))
    split = entry.get("split")
    put_source(
        translation,
        index,
        origin,
        path,
        format="preference" if entry.get("ranking") else "messages" if is_openai else formatting,
        fields=fields,
        split=None if split == "train" else split,
    )
    put_configuration(translation, index, f"{origin}: subset", path, entry.get("subset"))


def kind(translation: Translation) -> None:
    """Supervised rows, or plain text; an adapter."""
    if (stage := translation.get("stage")) not in (None, *STAGES):
        preferring(translation, "stage", stage)
    if stage == "pt":
        translation.put("data.loss", "all", "stage")
    if (way := translation.get("finetuning_type")) not in (None, "lora"):
        translation.leave("finetuning_type", f"{way}: only LoRA adapters are trained")
    if translation.get("lora_alpha") is None:
        translation.put("lora.alpha", 2 * int(as_number(translation.get("lora_rank")) or 8), "lora_alpha")
    if value := as_number(translation.get("val_size")):
        translation.put("data.validation", value, "val_size")
    if (way := translation.get("quantization_method")) not in (None, "bnb", "bitsandbytes"):
        translation.leave("quantization_method", f"{way}: bitsandbytes quantises here")
    if is_on(translation.get("neat_packing")) or is_on(translation.get("packing")):
        translation.put("train.packing", True, "neat_packing", "packing")
    elif translation.given.get("packing") is False:
        translation.put("train.packing", False, "packing")


TOOL = Tool(
    name="llama-factory",
    title="LLaMA-Factory",
    marks=words(
        "finetuning_type cutoff_len template lora_target stage dataset_dir quantization_bit do_train "
        "lora_rank overwrite_cache preprocessing_num_workers plot_loss val_size additional_target "
        "neat_packing"
    ),
    rules=trainer.RULES
    | peft.rules(rank="lora_rank")
    | {
        **dict.fromkeys(
            words(
                "dataset dataset_dir eval_dataset stage finetuning_type val_size quantization_bit packing "
                "quantization_method double_quantization pure_bf16 neat_packing infer_dtype pref_loss"
            ),
            later,
        ),
        **RULES,
        "model_name_or_path": to("model.name"),
        "model_revision": to("model.revision"),
        "template": by_word("data.template", TEMPLATES, why="data.template auto takes the model's own"),
        "cutoff_len": to_number("data.max_length"),
        "train_on_prompt": if_on("data.loss", "all"),
        "mask_history": if_on("data.loss", "completion"),
        "preprocessing_num_workers": to_number("data.workers", least=1),
        "lora_target": peft.targets,
        "additional_target": peft.modules_to_save,
        "add_tokens": peft.new_tokens,
        "rope_scaling": rope.scaling,
        "pissa_init": if_on("lora.init", "pissa"),
        "disable_gradient_checkpointing": if_on("train.checkpointing", False),
        "early_stopping_steps": to_number("train.early_stopping", least=1),
        "gradient_checkpointing": to_truth("train.checkpointing"),
    },
    finish=(
        kind,
        datasets,
        precision.quantised(bits="quantization_bit"),
        precision.dtype(),
        trainer.batches(micro="per_device_train_batch_size"),
        trainer.schedule(),
        trainer.cut_rows,
        *trainer.FINISH,
    ),
    defaults=trainer.DEFAULTS | {"lora_rank": 8, "lora_dropout": 0.0, "lora_target": "all", "cutoff_len": 2048},
    needless=trainer.NEEDLESS
    | words(
        "flash_attn enable_liger_kernel use_unsloth upcast_layernorm use_fast_tokenizer "
        "resume_from_checkpoint cache_dir upcast_lmhead_output plot_loss ray_run_name ray_storage_path "
        "predict_with_generate resize_vocab"
    ),
    lacking=trainer.LACKING | {"add_special_tokens": peft.NOT_SPECIAL},
)
