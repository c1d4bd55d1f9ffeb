"""What transformers' TrainingArguments call things, which TRL, LLaMA-Factory, ms-swift and unsloth take as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.catalog import optimizers
from loradock.catalog.schedules import SCHEDULES
from loradock.config.other_tools.base import (
    OFF,
    Finish,
    Rule,
    Translation,
    Value,
    as_list,
    as_mapping,
    as_number,
    by_word,
    if_on,
    is_on,
    later,
    to,
    to_number,
    to_truth,
    words,
)

OPTIMIZERS = {
    **{name: name for name in optimizers.OPTIMIZERS},
    **dict.fromkeys(words("adamw_torch adamw_torch_fused adamw_hf adamw paged_adamw_32bit paged_adamw")),
    "adamw_bnb_8bit": "adamw_8bit",
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), "lion"),
}
"""Their words -> ours, where they are not the same; None: AdamW in 32 bits, the default."""
LEFT_OUT_OPTIMIZERS = {"muon": optimizers.MUON}
OTHER_OPTIMIZERS = f"here are {', '.join(each.title for each in optimizers.OPTIMIZERS.values())}"
SCHEDULE_WORDS = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_restarts": "cosine_with_restarts",
    "cosine_with_min_lr": "cosine",
    "polynomial": "polynomial",
    "inverse_sqrt": "inverse_sqrt",
    "warmup_stable_decay": "wsd",
}
SCHEDULE_KEYS = {"num_cycles": "cycles", "power": "power", "num_decay_steps": "decay", "decay_type": "decay_shape"}
FLOORS = ("min_lr_rate", "min_lr_ratio")
TRACKERS = ("tensorboard", "wandb", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio")
AUTO = "auto sets it, and prints it"


def every(key: str) -> Rule:
    """A cadence in whole steps."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        number = as_number(value)
        if number is not None and 0 < number < 1:
            translation.leave(name, f"{key} takes steps, and this is a share of a run; {AUTO}")
        elif number is not None and number >= 1:
            translation.put(key, int(number), name)

    return rule


def report_to(translation: Translation, name: str, value: Any) -> None:
    """The trackers that are here, too."""
    named = [str(each).lower() for each in as_list(value)]
    if known := [each for each in named if each in TRACKERS]:
        translation.put("logging.trackers", known, name)
    if other := [each for each in named if each not in (*TRACKERS, "none", "all")]:
        translation.leave(name, f"no tracker here is called {', '.join(other)}")


def metric(translation: Translation, name: str, value: Any) -> None:
    """The loss of an evaluation."""
    if str(value).removeprefix("eval_") != "loss":
        translation.leave(name, f"{value}: supervised training reports the loss of an evaluation alone")


def batches(*, micro: str, accumulation: str = "gradient_accumulation_steps") -> Finish:
    """micro-batch x accumulation x GPUs is the samples of a step."""

    def finish(translation: Translation) -> None:
        rows, times = (as_number(translation.get(name)) or 1 for name in (micro, accumulation))
        shown = f"{micro} x {accumulation}" + (f" x {translation.gpus} GPUs" if translation.gpus > 1 else "")
        translation.values["train.global_batch"] = Value(int(rows * times * translation.gpus), shown)
        if translation.given.get(micro) is not None:
            translation.put("train.micro_batch", int(rows), micro)
        packed_rows(translation, micro)

    return finish


def packed_rows(translation: Translation, micro: str) -> None:
    """Say that a packed step of theirs holds more samples than rows."""
    if any(is_on(translation.get(name)) for name in ("sample_packing", "packing", "neat_packing")):
        samples = "train.global_batch is in samples: multiply it by those of a row (loradock data stats)"
        translation.leave(micro, f"with packing theirs counts packed rows, and {samples}")


def schedule(*, kind: str = "lr_scheduler_type", options: str = "lr_scheduler_kwargs") -> Finish:
    """The schedule with its options, and the warm-up, whose steps count before its share."""

    def finish(translation: Translation) -> None:
        word = str(translation.get(kind)).lower()
        ours = SCHEDULE_WORDS.get(word)
        if ours is None:
            translation.leave(kind, f"{word}: the schedules here are {', '.join(SCHEDULES)}")
        else:
            translation.put("train.schedule", ours, kind)
        given = translation.get(options)
        for name, value in as_mapping(given).items():
            _option(translation, f"{options}.{name}", name, value, word)
        steps, share = (as_number(translation.get(name)) for name in ("warmup_steps", "warmup_ratio"))
        if word == "constant":
            translation.put("train.warmup", 0, kind)
        elif steps:
            translation.put("train.warmup", steps if steps < 1 else int(steps), "warmup_steps")
        else:
            translation.put("train.warmup", share or 0, "warmup_ratio")

    return finish


def _option(translation: Translation, shown: str, name: str, value: Any, word: str) -> None:
    rate = as_number(translation.get("learning_rate")) or 1
    if name in FLOORS:
        translation.put("train.min_learning_rate_ratio", value, shown)
    elif name in ("min_lr", "lr_end"):
        translation.put("train.min_learning_rate_ratio", float(value) / rate, shown)
    elif name in SCHEDULE_KEYS and not (name == "num_cycles" and word != "cosine_with_restarts"):
        translation.put(f"train.{SCHEDULE_KEYS[name]}", value, shown)
    else:
        translation.leave(shown, "no schedule here has it")


def betas(translation: Translation) -> None:
    """AdamW's two, where one is given."""
    first, second = (as_number(translation.get(name)) for name in ("adam_beta1", "adam_beta2"))
    if first is not None or second is not None:
        name = "adam_beta1" if first is not None else "adam_beta2"
        translation.put("train.betas", [first or 0.9, second or 0.999], name)


def evaluations(translation: Translation) -> None:
    """Steps between evaluations, where something is held out and it goes by steps."""
    if "data.validation" not in translation.values:
        asked = [name for name in EVALUATING if translation.given.get(name) is not None]
        if asked and translation.given[asked[0]] not in OFF:
            translation.leave(asked[0], f"nothing is held out here: {HOLD_OUT}")
        return
    how = str(translation.get("eval_strategy", "evaluation_strategy") or "steps")
    if how == "steps" and (steps := translation.get("eval_steps")):
        every("evaluation.every")(translation, "eval_steps", steps)
    elif how == "epoch":
        translation.leave("eval_strategy", f"evaluation.every takes steps, and this is once an epoch; {AUTO}")


def cut_rows(translation: Translation) -> None:
    """A row that is too long is cut there, but where packing splits it."""
    length = translation.values.get("data.max_length")
    is_packed = is_on(translation.get("packing")) and translation.get("packing_strategy") in SPLITTING
    is_split = is_packed or translation.get("stage") == PRETRAINING
    if length and not is_split:
        translation.values["data.long_rows"] = replace(length, value="truncate")


EVALUATING = ("eval_strategy", "evaluation_strategy")
PRETRAINING = "pt"
"""LLaMA-Factory's, whose texts are joined and cut into pieces."""
SPLITTING = ("bfd_split", "wrapped")
"""TRL's ways to pack that cut no token off."""
HOLD_OUT = "--set data.validation=0.05 holds a share of the rows out"


def saves(translation: Translation) -> None:
    """Steps between checkpoints, where it goes by steps."""
    how = str(translation.get("save_strategy") or "steps")
    if how == "steps" and (steps := translation.get("save_steps")):
        every("checkpoints.every")(translation, "save_steps", steps)
    elif how == "epoch":
        translation.leave("save_strategy", f"checkpoints.every takes steps, and this is once an epoch; {AUTO}")
    elif how == "no":
        translation.leave("save_strategy", "the last step is always saved, and exported")


def sharing(translation: Translation) -> None:
    """ZeRO or FSDP, where there are several GPUs to share a model."""
    for name, modes in SHARED.items():
        value = translation.get(name)
        if value and translation.gpus == 1:
            translation.leave(name, "it shares a model among GPUs, and this is for one: --gpus N sets their number")
        elif value:
            mode = next(mode for word, mode in modes.items() if word in str(value))
            translation.put("train.parallel", mode, name)


SHARED = {"deepspeed": {"zero3": "zero3", "z3": "zero3", "": "zero2"}, "fsdp": {"": "fsdp"}}
"""Their key -> what its value holds, as a file's name does: the way of sharing."""


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        words(
            "gradient_accumulation_steps lr_scheduler_kwargs warmup_steps warmup_ratio adam_beta1 adam_beta2 "
            "bf16 fp16 eval_steps eval_strategy evaluation_strategy save_steps save_strategy deepspeed fsdp "
            "lr_scheduler_type per_device_train_batch_size"
        ),
        later,
    ),
    "learning_rate": to_number("train.learning_rate"),
    "num_train_epochs": to_number("train.epochs"),
    "max_steps": to_number("train.max_steps", above=0),
    "weight_decay": to_number("train.weight_decay"),
    "max_grad_norm": to_number("train.max_grad_norm"),
    "adam_epsilon": to_number("train.eps"),
    "neftune_noise_alpha": to_number("train.neftune_alpha", above=0),
    "loraplus_lr_ratio": to_number("train.loraplus_lr_ratio", above=0),
    "seed": to_number("train.seed"),
    "logging_steps": every("logging.every"),
    "save_total_limit": to_number("checkpoints.keep", least=1),
    "load_best_model_at_end": if_on("checkpoints.keep_best", True),
    "metric_for_best_model": metric,
    "early_stopping_patience": to_number("train.early_stopping", least=1),
    "gradient_checkpointing": to_truth("train.checkpointing"),
    "tf32": to_truth("train.tf32"),
    "optim": by_word("train.optimizer", OPTIMIZERS, why=OTHER_OPTIMIZERS, lacking=LEFT_OUT_OPTIMIZERS),
    "report_to": report_to,
    "run_name": to("name"),
    "output_dir": to("output"),
    "dataloader_num_workers": to_number("train.workers", least=1),
    "dataset_num_proc": to_number("data.workers", least=1),
    "use_cpu": if_on("device", "cpu"),
    "full_determinism": if_on("deterministic", True),
    "torch_compile": if_on("train.compile", "default"),
}
NEEDLESS = words(
    "do_train do_eval logging_first_step logging_strategy overwrite_output_dir remove_unused_columns "
    "gradient_checkpointing_kwargs per_device_eval_batch_size bf16_full_eval disable_tqdm logging_dir "
    "dataloader_pin_memory dataloader_drop_last ddp_find_unused_parameters save_safetensors "
    "greater_is_better overwrite_cache use_liger_kernel include_num_input_tokens_seen "
    "include_tokens_per_second prediction_loss_only ddp_timeout save_only_model log_level "
    "eval_on_start dataloader_persistent_workers precompute_ref_log_probs precompute_ref_batch_size"
)
"""What needs no counterpart: the adapter is the same without it."""
LACKING = {
    "data_seed": "train.seed orders the rows, and data.seed holds a part out",
    "label_smoothing_factor": "the loss is the likelihood, without smoothing",
    "torch_compile_backend": "train.compile has a mode, and the backend is inductor",
    "trust_remote_code": "only a model that ships code of its own needs it: --set model.trust_remote_code=NAME",
    "eval_accumulation_steps": "evaluation keeps no logits",
}
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0,
    "seed": 42,
}
"""Those of TrainingArguments that decide what is trained, where ours are others."""
FINISH: tuple[Finish, ...] = (betas, saves, evaluations, sharing)
