"""The keyword arguments of an unsloth notebook: from_pretrained, get_peft_model and the trainer's, flat or by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from loradock.config.other_tools import peft, precision, rope, trainer
from loradock.config.other_tools.base import (
    Tool,
    Translation,
    as_list,
    is_on,
    later,
    put_source,
    refuse,
    to,
    to_number,
    to_truth,
    unless_on,
    words,
)
from loradock.config.other_tools.preference import LIKELIHOOD, LOSSES, REWARD, RULES, UNPAIRED, preferring

DATA = ("dataset_name", "dataset", "data_files", "train_dataset")


MAPPINGS = (
    "lr_scheduler_kwargs", "rank_pattern", "alpha_pattern", "rope_scaling", "loftq_config", "data_files",
    "dataset_kwargs", "train_on_responses_only",
)  # fmt: skip
"""Arguments that are mappings themselves."""
KINDS = "SFT|DPO|KTO|ORPO|CPO|SimPO|BCO|Reward|PRM|GRPO|RLOO|PPO|OnlineDPO|NashMD|XPO|GKD"
TRAINER = re.compile(rf"(?:Unsloth)?(?P<kind>[A-Za-z]*?)Trainer|(?P<arguments>{KINDS})Config")
"""What trains, by the name of its class or of its arguments: DPOTrainer, KTOConfig."""
LENGTHS = ("max_seq_length", "max_length")
"""Of the model, and of the trainer's rows."""
OF_VECTORS = "FastSentenceTransformer"
SUPERVISED = ("SFT", "")
WORDS = {"reward": REWARD}
READERS = ("json", "csv", "parquet", "text")
"""First arguments of load_dataset that say how files are read."""
ENDS = ("embed_tokens", "lm_head")
"""Targets that are trained whole there."""


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that stand by the name of their function, on one level; `trainer` is what trains, if not SFTTrainer."""
    level: dict[str, Any] = {}
    for name, value in values.items():
        is_call = isinstance(value, dict) and name not in MAPPINGS
        level |= flat(cast("dict[str, Any]", value)) if is_call else {name: value}
        found = TRAINER.fullmatch(name) if is_call else None
        if (found and kind_of(found) not in SUPERVISED) or name.startswith(OF_VECTORS):
            level["trainer"] = name
    return level


def kind_of(found: re.Match[str]) -> str:
    """The kind of a trainer, as `TRAINER` found it."""
    return str(found["arguments"] or found["kind"])


def kind(translation: Translation) -> None:
    """Training by preferences or of a reward model, by the trainer's name."""
    call = translation.get("trainer")
    found = TRAINER.fullmatch(str(call))
    if call:
        word = kind_of(found).lower() if found else str(call)
        preferring(translation, "trainer", WORDS.get(word, word))
        if translation.refused.pop("trainer", None):
            translation.refused[str(call)] = str(call)
    elif UNPAIRED & translation.given.keys():
        preferring(translation, next(iter(sorted(UNPAIRED & translation.given.keys()))), "kto")
    else:
        for name in ("num_generations", "reward_funcs", "beta"):
            if translation.get(name) is not None:
                refuse(translation, name, f"{translation.get(name)}, of a trainer that is not named (DPOConfig: ...)")
        likelihood(translation)
    if (task := str(translation.get("task_type"))) not in ("CAUSAL_LM", "None"):
        refuse(translation, "task_type", task)


def likelihood(translation: Translation) -> None:
    """The loss of SFTTrainer: refused where it is one of a trainer that is not named."""
    loss = translation.get("loss_type")
    if str(loss) in LOSSES:
        refuse(translation, "loss_type", f"{loss}, of a trainer that is not named (DPOConfig: ...)")
    elif loss is not None and str(loss) not in LIKELIHOOD:
        translation.leave("loss_type", f"{loss}: the loss is the likelihood, each token as it is")


def parts_trained(translation: Translation) -> None:
    """Targets without the parts that are not trained."""
    for switch, part in PARTS.items():
        if translation.given.get(switch) is None or is_on(translation.get(switch)):
            continue
        targets = translation.values.get("lora.targets")
        names = cast("list[str]", targets.value) if targets and isinstance(targets.value, list) else []  # pyright: ignore[reportUnknownMemberType]
        if remaining := [name for name in names if name not in part]:
            translation.put("lora.targets", remaining, "target_modules", switch)
        else:
            translation.leave(switch, "off: lora.targets names the layers that get adapters")


PARTS = {
    "finetune_attention_modules": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "finetune_mlp_modules": ("gate_proj", "up_proj", "down_proj"),
}


def whole_modules(translation: Translation) -> None:
    """The embedding and the head among the targets are trained whole."""
    targets, saved = (translation.values.get(f"lora.{name}") for name in ("targets", "modules_to_save"))
    if targets is None or not isinstance(targets.value, list):
        return
    names = cast("list[str]", targets.value)  # pyright: ignore[reportUnknownMemberType]
    if ends := [name for name in names if name in ENDS]:
        others = cast("list[str]", saved.value) if saved else []
        translation.put("lora.targets", [name for name in names if name not in ENDS], "target_modules")
        translation.put(
            "lora.modules_to_save", [*others, *(name for name in ends if name not in others)], "target_modules"
        )


def sources(translation: Translation) -> None:
    """What the notebook loads."""
    name = next((name for name in DATA if translation.given.get(name)), None)
    column = translation.get("dataset_text_field")
    fields = {} if column in (None, "text") else {"text": column}
    files = translation.get("data_files")
    if files and (name == "data_files" or translation.get(str(name)) in READERS):
        parts = cast("dict[str, Any]", files) if isinstance(files, dict) else {"train": files}
        for index, file in enumerate(as_list(parts.get("train") or [])):
            put_source(translation, index, "data_files", str(file), fields=fields)
        for part in ("test", "validation"):
            if part in parts:
                translation.put("data.validation", str(as_list(parts[part])[0]), "data_files")
    elif name:
        split = str(translation.get("split") or "train")
        if "[" in split:
            translation.leave("split", f"{split}: the whole split is read; train.max_steps bounds the steps")
            split = split.partition("[")[0]
        path = str(translation.get(name))
        put_source(translation, 0, name, path, fields=fields, split=None if split == "train" else split)
        if files:
            translation.leave("data_files", f"{files}: of a hub data set its splits are read; #SPLIT names one")
    if held_out := translation.get("eval_dataset"):
        translation.put("data.validation", str(held_out), "eval_dataset")


def learned(translation: Translation) -> None:
    """What is learned of the rows, and how long they may be."""
    answers = translation.get("train_on_responses_only")
    if is_on(answers) or isinstance(answers, dict):
        translation.put("data.loss", "assistant", "train_on_responses_only")
    elif is_on(translation.get("assistant_only_loss")):
        translation.put("data.loss", "assistant", "assistant_only_loss")
    if translation.given.get("packing") is not None:
        translation.put("train.packing", is_on(translation.get("packing")), "packing")
    if is_on(translation.get("full_finetuning")):
        translation.leave("full_finetuning", "only LoRA adapters are trained")
    lengths = {name: value for name in LENGTHS if isinstance(value := translation.given.get(name), int)}
    if lengths:
        name, value = min(lengths.items(), key=lambda item: item[1])
        translation.put("data.max_length", value, name)
    elif value := translation.get(*LENGTHS):
        translation.put("data.max_length", value, *LENGTHS)
    if translation.given.get("completion_only_loss") is False:
        translation.put("data.loss", "all", "completion_only_loss")


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
    | RULES
    | peft.rules(rank="r")
    | {
        **dict.fromkeys(
            frozenset(DATA)
            | words(
                "load_in_4bit load_in_8bit dtype dataset_text_field split packing max_seq_length max_length "
                "train_on_responses_only full_finetuning load_in_16bit eval_dataset assistant_only_loss trainer "
                "completion_only_loss finetune_attention_modules finetune_mlp_modules "
                "task_type loss_type loss_weights center_rewards_coefficient num_generations reward_funcs"
            ),
            later,
        ),
        "finetune_language_layers": unless_on("lora.targets names the layers that get adapters"),
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
        kind,
        sources,
        learned,
        parts_trained,
        whole_modules,
        precision.quantised(),
        precision.dtype("dtype"),
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
        "fast_inference gpu_memory_utilization max_lora_rank "
        "attn_implementation use_exact_model_name unsloth_tiled_mlp "
        "fix_tokenizer dataset_kwargs"
    ),
    lacking=trainer.LACKING
    | {
        "loftq_config": "lora.init has no LoftQ",
        "finetune_vision_layers": "only the language model is trained",
        "chat_template": "the tokenizer's own is taken; data.template names another, or a file of one",
        "embedding_learning_rate": "one learning rate for all that is trained",
    },
)
