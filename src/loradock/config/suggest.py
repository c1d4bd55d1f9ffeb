"""Unknown keys: what was probably meant, by spelling, by section, or by the name another tool gives to the key."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from loradock.config.fields import annotation_at, item_of, keys, section_of, takes
from loradock.config.strict_yaml import KeyPath

# The names that axolotl, LLaMA-Factory, TRL, transformers, peft and bitsandbytes give to our keys.
RENAMED = {
    "adam_8bit": "train.optimizer",
    "attn_implementation": "model.attention",
    "base_model": "model.name",
    "batch_size": "train.global_batch",
    "bf16": "model.compute_dtype",
    "bits": "model.quantization",
    "bnb_4bit_compute_dtype": "model.compute_dtype",
    "bnb_4bit_quant_type": "model.quantization",
    "bnb_4bit_use_double_quant": "model.double_quant",
    "chat_template": "data.template",
    "clip_grad": "train.max_grad_norm",
    "cutoff_len": "data.max_length",
    "dataloader_num_workers": "train.workers",
    "dataset": "data.sources",
    "dataset_name": "data.sources",
    "dataset_num_proc": "data.workers",
    "dataset_path": "data.sources",
    "data_files": "data.sources",
    "datasets": "data.sources",
    "double_quantization": "model.double_quant",
    "early_stopping_patience": "train.early_stopping",
    "eval_dataset": "data.validation",
    "eval_file": "data.validation",
    "eval_steps": "evaluation.every",
    "flash_attention": "model.attention",
    "fp16": "model.compute_dtype",
    "gradient_checkpointing": "train.checkpointing",
    "gradient_clipping": "train.max_grad_norm",
    "init_lora_weights": "lora.init",
    "load_best_model_at_end": "checkpoints.keep_best",
    "load_in_4bit": "model.quantization",
    "load_in_8bit": "model.quantization",
    "logging_steps": "logging.every",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "lora_r": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_target": "lora.targets",
    "lora_target_modules": "lora.targets",
    "lr": "train.learning_rate",
    "lr_scheduler": "train.schedule",
    "lr_scheduler_type": "train.schedule",
    "max_seq_length": "data.max_length",
    "micro_batch_size": "train.micro_batch",
    "model_id": "model.name",
    "model_name": "model.name",
    "model_name_or_path": "model.name",
    "neftune_noise_alpha": "train.neftune_alpha",
    "num_epochs": "train.epochs",
    "num_train_epochs": "train.epochs",
    "optim": "train.optimizer",
    "output_dir": "output",
    "path": "data.sources",
    "per_device_train_batch_size": "train.micro_batch",
    "quantization_bit": "model.quantization",
    "r": "lora.rank",
    "report_to": "logging.trackers",
    "run_name": "name",
    "sample_packing": "train.packing",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "seq_len": "data.max_length",
    "seq_length": "data.max_length",
    "sequence_len": "data.max_length",
    "target_modules": "lora.targets",
    "test_size": "data.validation",
    "torch_compile": "train.compile",
    "torch_dtype": "model.compute_dtype",
    "train_on_inputs": "data.loss",
    "train_file": "data.sources",
    "use_dora": "lora.dora",
    "use_rslora": "lora.rslora",
    "val_file": "data.validation",
    "validation_file": "data.validation",
    "val_set_size": "data.validation",
    "val_size": "data.validation",
    "wandb": "logging.trackers",
    "wandb_project": "logging.project",
    "warmup_ratio": "train.warmup",
    "warmup_steps": "train.warmup",
}

# Names that have no key of their own here, and why not.
EXPLAINED = {
    "adapter": "every run trains a LoRA adapter: lora.rank is its size; QLoRA is model.quantization: nf4, the default",
    "format": "it belongs to a source: data.sources.0.format",
    "columns": "they belong to a source: data.sources.0.fields.FIELD=COLUMN",
    "gradient_accumulation_steps": "it follows from train.global_batch, the micro-batch and the number of GPUs",
    "gradient_accumulation": "it follows from train.global_batch, the micro-batch and the number of GPUs",
    "overwrite_output_dir": "give it on the command line: --fresh starts a new run, nothing is deleted",
    "per_device_eval_batch_size": "evaluation uses the micro-batch that the plan finds to fit",
    "preset": "give it on the command line: --preset NAME",
    "resume_from_checkpoint": "give it on the command line: --resume",
    "remove_unused_columns": "only the columns that the format names are read; see data.sources.N.fields",
    "group_by_length": "packing makes it needless: see train.packing",
    "dataloader_pin_memory": "the plan decides it and prints why; see train.workers",
    "dataloader_prefetch_factor": "the plan decides it and prints why; see train.workers",
    "ddp_find_unused_parameters": "it is always off: every adapter weight takes part in every step",
    "device_map": "each rank puts the model on its own GPU, or its shard of it: see train.parallel, and device",
    "deepspeed": "write train.parallel: zero2 or zero3; train.deepspeed takes the path of a JSON file of your own",
    "fsdp": "write train.parallel: fsdp; auto takes it where the model does not fit one GPU",
    "fsdp_config": "write train.parallel: fsdp; auto takes it where the model does not fit one GPU",
    "hf_token": "a secret has no place in a configuration: set HF_TOKEN in the environment",
    "token": "a secret has no place in a configuration: set HF_TOKEN in the environment",
}
NEAR = 0.7
"""How alike (difflib's ratio) a misspelt key is: modle is model (0.8), adapter is not after (0.67)."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """An unknown key in words; `meant` is the key that was surely meant, where there is one."""

    what: str
    hint: str
    meant: str | None = None


def unknown_key(path: KeyPath) -> Unknown:
    """Explain the unknown key at `path`, whose parent is a known section."""
    name = str(path[-1])
    what = f"unknown key: {dotted(path)}"
    if annotation_at(tuple(name.split("."))) is not None and "." in name:
        section, _, rest = name.partition(".")
        return Unknown(what=what, hint=f"write {section}: {{{rest}: ...}}; dots are for --set", meant=name)
    plain = name.lower().replace("-", "_")
    if plain in EXPLAINED:
        return Unknown(what=what, hint=EXPLAINED[plain])
    if plain in RENAMED:
        return _did_you_mean(what, [RENAMED[plain]])
    siblings = _siblings(path[:-1])
    everywhere = [key.name for key in keys() if ".N." not in key.name]
    prefix = dotted(path[:-1]) + "." if len(path) > 1 else ""
    found = (
        [key for key in everywhere if key.rpartition(".")[2] == plain]
        or [prefix + near for near in difflib.get_close_matches(plain, siblings, n=1, cutoff=NEAR)]
        or _near_anywhere(plain, everywhere)
    )
    if found:
        return _did_you_mean(what, found)
    return Unknown(what=what, hint=_known(path[:-1], siblings))


def key_called(name: str) -> str | None:
    """The key that is surely meant by a name: a whole key, what another tool calls it, or the end of one key alone."""
    if "." in name:
        return name if annotation_at(tuple(name.split("."))) is not None else None
    ends = [key.name for key in keys() if ".N." not in key.name and key.name.rpartition(".")[2] == name]
    return RENAMED.get(name) or (ends[0] if len(ends) == 1 else None)


def dotted(path: KeyPath) -> str:
    """The key path as a person types it: ("data", "sources", 0) -> "data.sources.0"."""
    return ".".join(str(part) for part in path)


def _did_you_mean(what: str, found: list[str]) -> Unknown:
    meant = found[0] if len(found) == 1 else None
    return Unknown(what=what, hint=f"did you mean {' or '.join(found)}?", meant=meant)


def _near_anywhere(name: str, everywhere: list[str]) -> list[str]:
    by_leaf = {key.rpartition(".")[2]: key for key in everywhere}
    return [by_leaf[near] for near in difflib.get_close_matches(name, list(by_leaf), n=1, cutoff=0.75)]


def _known(parent: KeyPath, siblings: list[str]) -> str:
    annotation = annotation_at(parent)
    if section_of(item_of(annotation)) is not None:
        return f"entries go by their position: {dotted(parent)}.0"
    if annotation is None or siblings:
        return f"known here: {', '.join(siblings or _siblings(()))}"
    return f"{dotted(parent)} takes {takes(annotation)}"


def _siblings(parent: KeyPath) -> list[str]:
    annotation = annotation_at(parent)
    section = section_of(annotation) or section_of(item_of(annotation))
    return list(section.model_fields) if section else []
