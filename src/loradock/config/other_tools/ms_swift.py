"""ms-swift's `swift sft --config FILE`, or the arguments of its command line in a file."""

from __future__ import annotations

from loradock.config.other_tools import peft, precision, rope, trainer
from loradock.config.other_tools.base import (
    HELD_OUT_HUB,
    Tool,
    Translation,
    as_list,
    as_number,
    by_word,
    if_on,
    is_on,
    later,
    path_of,
    put_configuration,
    put_source,
    refuse,
    to,
    to_number,
    unless_on,
    words,
)
from loradock.config.other_tools.preference import RULES, first_adapter, preferring

LONG = {"delete": "drop", "left": None, "right": "truncate", "split": "split"}
LOSSES = {"default": None, "last_round": "completion", "all": "all"}
TASKS = ("causal_lm", "CAUSAL_LM", "None")
OTHER_TASKS = {"embedding": "; here with objective: embedding and rows of query and passages, see docs/embedding.md"}
SAMPLES = 16
"""Of a step where accumulation is not given."""


def sources(translation: Translation) -> None:
    """Names with `:subset` and `#rows` behind them."""
    for index, name in enumerate(as_list(translation.get("dataset") or [])):
        path, _, count = str(name).partition("#")
        configuration = None
        head, colon, subset = path.rpartition(":")
        if colon and "/" not in subset and head not in ("hub", "hf", "HF", "ms"):
            path, configuration = head, subset
        if count:
            translation.leave(f"dataset {name}", f"#{count}: head -n {count} of its file")
        path = path.removeprefix("HF::").removeprefix("hf::")
        if path_of(path).startswith("hub:") and not is_on(translation.get("use_hf")):
            translation.leave(
                f"dataset {name}", "it is ModelScope's name, and hub: is that of Hugging Face: see that it is there"
            )
        put_source(translation, index, "dataset", path)
        put_configuration(translation, index, f"dataset {name}", path, configuration)
    if files := as_list(translation.get("val_dataset") or []):
        file = str(files[0]).partition("#")[0]
        if path_of(file).startswith("hub:"):
            translation.leave("val_dataset", HELD_OUT_HUB)
        else:
            translation.put("data.validation", file, "val_dataset")
    elif share := as_number(translation.get("split_dataset_ratio")):
        translation.put("data.validation", share, "split_dataset_ratio")


def kind(translation: Translation) -> None:
    """An adapter, and the samples of a step."""
    if (way := translation.get("rlhf_type")) is not None:
        preferring(translation, "rlhf_type", way)
    if (task := str(translation.get("task_type"))) not in TASKS:
        refuse(translation, "task_type", f"{task}{OTHER_TASKS.get(task, '')}")
    way = translation.get("tuner_type", "train_type")
    if way != "lora":
        name = "tuner_type" if translation.given.get("tuner_type") else "train_type"
        translation.leave(name, f"{way}: only LoRA adapters are trained")
    if (method := translation.get("quant_method")) not in ("bnb", None):
        translation.leave("quant_method", f"{method}: bases are quantised by bitsandbytes")
    rows = as_number(translation.get("per_device_train_batch_size")) or 1
    times = as_number(translation.get("gradient_accumulation_steps"))
    samples = int(rows * times * translation.gpus if times else max(SAMPLES, rows * translation.gpus))
    translation.put("train.global_batch", samples, "gradient_accumulation_steps")
    if translation.given.get("per_device_train_batch_size") is not None:
        translation.put("train.micro_batch", int(rows), "per_device_train_batch_size")
    trainer.packed_rows(translation, "per_device_train_batch_size")
    if is_on(translation.get("packing")):
        translation.put("train.packing", True, "packing")


TOOL = Tool(
    name="ms-swift",
    title="ms-swift",
    marks=words(
        "train_type tuner_type split_dataset_ratio quant_bits quant_method loss_scale truncation_strategy "
        "lorap_lr_ratio attn_impl torch_dtype model dataset target_modules val_dataset use_hf rlhf_type "
        "model_author init_weights"
    ),
    rules=trainer.RULES
    | peft.rules(rank="lora_rank")
    | {
        **dict.fromkeys(
            words(
                "dataset val_dataset split_dataset_ratio use_hf train_type tuner_type rlhf_type packing loss_type "
                "loss_weights center_rewards_coefficient "
                "quant_bits quant_method torch_dtype bnb_4bit_compute_dtype bnb_4bit_quant_type "
                "bnb_4bit_use_double_quant task_type"
            ),
            later,
        ),
        **RULES,
        "adapters": first_adapter,
        "model": to("model.name"),
        "model_revision": to("model.revision"),
        "max_length": to_number("data.max_length"),
        "truncation_strategy": by_word("data.long_rows", LONG, why="a long row is split, cut, or dropped"),
        "loss_scale": by_word("data.loss", LOSSES, why="data.loss says what is learned: completion, assistant or all"),
        "target_modules": peft.targets,
        "rope_scaling": rope.scaling,
        "modules_to_save": peft.modules_to_save,
        "init_weights": by_word("lora.init", peft.INITS),
        "lorap_lr_ratio": to_number("train.loraplus_lr_ratio", above=0),
        "padding_free": if_on("train.packing", True),
        "early_stop_interval": to_number("train.early_stopping", least=1),
        "target_regex": peft.targets,
        "use_chat_template": unless_on("rows of prompt and completion, or of text, are taken without a template"),
        **dict.fromkeys(("dataset_shuffle", "train_dataloader_shuffle"), unless_on("train.seed orders the rows")),
    },
    finish=(
        kind,
        sources,
        precision.quantised(bits="quant_bits"),
        precision.dtype("torch_dtype", "bnb_4bit_compute_dtype"),
        trainer.schedule(),
        *trainer.FINISH,
    ),
    defaults=trainer.DEFAULTS
    | {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": None,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "train_type": "lora",
        "lora_rank": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "target_modules": "all-linear",
        "truncation_strategy": "delete",
    },
    needless=trainer.NEEDLESS
    | words(
        "model_type model_author model_name attn_impl load_from_cache_file "
        "create_checkpoint_symlink acc_strategy lazy_tokenize strict check_model add_version "
        "template"
    ),
    lacking=trainer.LACKING
    | {
        "system": "each row has its own, in a column `system` or a first turn",
        "new_special_tokens": peft.NOT_SPECIAL,
        "freeze_vit": "only the language model is trained",
        "freeze_aligner": "only the language model is trained",
    },
)
