"""axolotl's configuration."""

from __future__ import annotations

from typing import Any, cast

from loradock.config.other_tools import peft, precision, rope, trainer
from loradock.config.other_tools.base import (
    HELD_OUT_HUB,
    Tool,
    Translation,
    as_list,
    as_mapping,
    as_number,
    by_word,
    if_on,
    is_on,
    later,
    path_of,
    put_configuration,
    put_source,
    to,
    to_number,
    to_truth,
    words,
)
from loradock.config.other_tools.preference import RULES, preferring, reward_model

FORMATS = {
    "alpaca": "alpaca",
    "alpaca_chat": "alpaca",
    "chat_template": "messages",
    "sharegpt": "sharegpt",
    "completion": "text",
    "pretrain": "text",
}
"""The first part of a `type` (`alpaca`, `alpaca.load_no_prompt`, `chat_template.default`) -> our format."""
COLUMNS = {
    "field_instruction": "instruction",
    "field_input": "input",
    "field_output": "output",
    "field_system": "system",
    "system_prompt": "",
    "system_format": "",
    "format": "",
    "no_input_format": "",
}
"""Of a `type` that is a mapping: their field -> ours; empty: its layout, which the template has."""
TEMPLATES = {
    "tokenizer_default": None,
    "tokenizer_default_fallback_chatml": None,
    "chatml": "chatml",
    "llama3": "llama3",
    "gemma": "gemma",
    "phi_3": "phi3",
    "phi_35": "phi3",
    "mistral_v1": "mistral",
    "alpaca": "alpaca",
}
LONG = {"drop": "drop", "truncate": "truncate", "raise": None}


def datasets(translation: Translation, name: str, value: Any) -> None:
    """Each as a source."""
    for index, entry in enumerate(as_list(value)):
        _dataset(translation, index, f"{name}.{index}", as_mapping(entry) or {"path": entry})


def _dataset(translation: Translation, index: int, origin: str, entry: dict[str, Any]) -> None:
    kind, fields = entry.get("type"), dict[str, str]()
    if isinstance(kind, dict):
        format_name, kind = "alpaca", as_mapping(cast("Any", kind))
        fields = {COLUMNS[name]: column for name, column in kind.items() if COLUMNS.get(name)}
        if layout := [name for name in kind if not COLUMNS.get(name)]:
            translation.leave(f"{origin}.type", f"{', '.join(layout)}: data.template lays rows out")
    else:
        format_name = FORMATS.get(str(kind or "").partition(".")[0].partition(":")[0])
        if kind and format_name is None:
            translation.leave(f"{origin}.type", f"{kind}: data.sources.{index}.format takes it by its columns (auto)")
    if (messages := entry.get("field_messages")) and messages != "messages":
        fields["messages"] = messages
    if (column := entry.get("field")) and format_name == "text" and column != "text":
        fields["text"] = column
    path, files = str(entry.get("path", "")), entry.get("data_files")
    if path in ("json", "csv", "parquet", "text") and files:
        path = str(next(iter(as_list(files)), ""))
    elif files:
        translation.leave(f"{origin}.data_files", "a hub data set is read whole; its files go by `path`")
    put_source(
        translation,
        index,
        origin,
        path,
        format="messages" if format_name == "sharegpt" and fields.get("messages") else format_name,
        fields=fields,
        split=None if entry.get("split") in (None, "train") else entry["split"],
        revision=entry.get("revision"),
    )
    put_configuration(translation, index, f"{origin}.name", path, entry.get("name"))
    read = {"path", "type", "field_messages", "field", "data_files", "split", "revision", "ds_type", "name"}
    for key in entry.keys() - read - NEEDLESS_OF_A_SOURCE:
        if entry[key]:
            translation.leave(f"{origin}.{key}", SOURCE_KEYS.get(key, "rows are read as they are"))


NEEDLESS_OF_A_SOURCE = {
    "message_field_role",
    "message_field_content",
    "message_property_mappings",
    "roles",
    "trust_remote_code",
}
"""Roles and contents are found under the names of OpenAI and of ShareGPT."""
SOURCE_KEYS = {
    "shards": "a part of a data set: head -n N of its file",
    "chat_template": "data.template is that of all sources",
    "roles_to_train": "data.loss says what is learned, of all sources",
    "train_on_eos": "the end of an answer is learned",
}


def held_out(translation: Translation, name: str, value: Any) -> None:
    """A share, a number of rows, or the first of several files."""
    if name == "val_set_size":
        if number := as_number(value):
            translation.put("data.validation", number, name)
        return
    entry = next(iter(as_list(value)), None)
    first = as_mapping(entry) or {"path": entry}
    file = str(next(iter(as_list(first.get("data_files") or first.get("path"))), ""))
    if path_of(file).startswith("hub:"):
        translation.leave(name, HELD_OUT_HUB)
    else:
        translation.put("data.validation", file, name)


def attention(translation: Translation, name: str, value: Any) -> None:
    """auto takes flash-attn where it is installed; others are asked for."""
    if name == "eager_attention" and is_on(value):
        translation.put("model.attention", "eager", name)


def adapter(translation: Translation) -> None:
    """LoRA or QLoRA; without an adapter they train all weights."""
    if translation.get("adapter") is None:
        translation.leave("adapter", "not given, which trains all weights; here a LoRA adapter is trained")
    if is_on(translation.get("lora_target_linear")):
        translation.put("lora.targets", "all-linear", "lora_target_linear")
    elif value := translation.get("lora_target_modules"):
        peft.targets(translation, "lora_target_modules", value)
    if project := translation.get("wandb_project"):
        translation.put("logging.trackers", ["wandb"], "wandb_project")
        translation.put("logging.project", str(project), "wandb_project")
    floor = as_number(translation.get("cosine_min_lr_ratio"))
    if floor:
        translation.put("train.min_learning_rate_ratio", floor, "cosine_min_lr_ratio")


def special_tokens(translation: Translation, name: str, value: Any) -> None:
    """Those that a base has already; padding needs none."""
    for token, text in as_mapping(value).items():
        if token not in PADDING:
            translation.leave(f"{name}.{token}", f"the {token} that the tokenizer's files name is taken, not {text}")


PADDING = ("pad_token", "unk_token")
WHOLE_WEIGHTS = "only LoRA adapters are trained"
TOOL = Tool(
    name="axolotl",
    title="axolotl",
    marks=words(
        "base_model sequence_len micro_batch_size datasets val_set_size adapter num_epochs "
        "lora_target_linear sample_packing dataset_prepared_path lr_scheduler optimizer train_on_inputs "
        "tokenizer_type strict wandb_project"
    ),
    rules=trainer.RULES
    | peft.rules(rank="lora_r", prefix="peft_")
    | {
        **dict.fromkeys(
            words(
                "micro_batch_size lr_scheduler adapter load_in_4bit load_in_8bit lora_target_linear float16 "
                "lora_target_modules wandb_project cosine_min_lr_ratio bfloat16 bnb_4bit_use_double_quant"
            ),
            later,
        ),
        "base_model": to("model.name"),
        "revision_of_model": to("model.revision"),
        "datasets": datasets,
        "val_set_size": held_out,
        "test_datasets": held_out,
        "sequence_len": to_number("data.max_length"),
        "sample_packing": to_truth("train.packing"),
        "train_on_inputs": if_on("data.loss", "all"),
        "min_sample_len": to_number("data.min_tokens"),
        "dataset_exact_deduplication": if_on("data.deduplicate", "exact"),
        "excess_length_strategy": by_word("data.long_rows", LONG),
        **RULES,
        "rl": preferring,
        "reward_model": reward_model,
        "center_rewards_coefficient": later,
        "chat_template": by_word("data.template", TEMPLATES, why="data.template takes a .jinja file, too"),
        "lora_modules_to_save": peft.modules_to_save,
        "tokens": peft.new_tokens,
        "rope_scaling": rope.scaling,
        "overrides_of_model_config": rope.of_model_config,
        "num_epochs": to_number("train.epochs"),
        "optimizer": by_word(
            "train.optimizer",
            trainer.OPTIMIZERS,
            why=trainer.OTHER_OPTIMIZERS,
            lacking=trainer.LEFT_OUT_OPTIMIZERS,
        ),
        "noisy_embedding_alpha": to_number("train.neftune_alpha", above=0),
        "special_tokens": special_tokens,
        "lora_init_weights": by_word("lora.init", peft.INITS),
        "eager_attention": attention,
        "dataset_processes": to_number("data.workers", least=1),
        "use_tensorboard": if_on("logging.trackers", ["tensorboard"]),
        "wandb_name": to("name"),
    },
    finish=(
        adapter,
        precision.quantised(),
        precision.dtype("torch_dtype"),
        trainer.batches(micro="micro_batch_size"),
        trainer.schedule(kind="lr_scheduler"),
        *trainer.FINISH,
    ),
    defaults={
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "num_epochs": 1,
        "learning_rate": 2e-4,
        "lr_scheduler": "cosine",
        "warmup_ratio": 0.03,
        "seed": 42,
        "sequence_len": 512,
        "lora_dropout": 0.0,
        "excess_length_strategy": "drop",
    },
    needless=trainer.NEEDLESS
    | words(
        "model_type tokenizer_type tokenizer_config strict flash_attention sdp_attention "
        "xformers_attention debug pad_to_sequence_len eval_sample_packing dataset_prepared_path "
        "wandb_watch wandb_log_model wandb_entity lora_mlp_kernel lora_qkv_kernel "
        "lora_o_kernel eval_batch_size shuffle_merged_datasets is_llama_derived_model "
        "is_mistral_derived_model is_falcon_derived_model flash_attn_cross_entropy flash_attn_rms_norm "
        "flash_attn_fuse_mlp flash_attn_fuse_qkv auto_resume_from_checkpoints wandb_run_id local_rank "
        "plugins liger_rope liger_rms_norm liger_glu_activation liger_layer_norm "
        "liger_fused_linear_cross_entropy eval_table_size eval_max_new_tokens device base_model_config "
        "attn_implementation flex_attention"
    ),
    lacking=trainer.LACKING
    | {
        "evals_per_epoch": f"evaluation.every takes steps; {trainer.AUTO}",
        "saves_per_epoch": f"checkpoints.every takes steps; {trainer.AUTO}",
        "unfrozen_parameters": WHOLE_WEIGHTS,
        "lora_target_parameters": "adapters are on linear layers",
        "relora_steps": "an adapter is trained once",
        "added_tokens_overrides": "tokens keep their texts; tokenizer.add_tokens adds some",
    },
)
