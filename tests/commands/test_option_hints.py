"""An option that other trainers have, typed here, is answered with what it is called here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loradock.cli import COMMANDS, cli
from loradock.config.fields import keys
from loradock.config.load import load
from loradock.config.other_tools.explained import EXPLAINED
from loradock.config.other_tools.renamed import RENAMED
from loradock.errors import ConfigError, UsageError

MEANT = {
    "--lora_r": "--rank R",
    "--lora-r": "--rank R",
    "-r": "--rank R",
    "--lora_dropout": "--set lora.dropout=VALUE",
    "--learning-rate": "--lr RATE",
    "--learning_rate": "--lr RATE",
    "--num_train_epochs": "--epochs N",
    "--per_device_train_batch_size": "--set train.micro_batch=VALUE",
    "--per-device-train-batch-size": "--set train.micro_batch=VALUE",
    "--micro-batch-size": "--set train.micro_batch=VALUE",
    "--warmup-ratio": "--set train.warmup=VALUE",
    "--max_seq_length": "--max-length TOKENS",
    "--output_dir": "--output DIR",
    "-o": "--output DIR",
    "--dataset": "--data FILE",
    "--bf16": "--set model.compute_dtype=bfloat16",
    "--fp16": "--set model.compute_dtype=float16",
    "--report-to": "--set logging.trackers=[wandb]",
    "--wandb": "--set logging.trackers=[wandb]",
    "--load-in-4bit": "--set model.quantization=nf4",
    "--resume-from-checkpoint": "--resume",
    "--overwrite-output-dir": "--fresh",
    "--config": "loradock train run.yaml",
    "--dry-run": "loradock plan",
    "--bs": "--batch-size",
    "--deepspeed": "train.parallel",
    "--loss_type": "--set objective=preference --set preference.loss=dpo (kto,",
    "--pref-loss": "sigmoid is dpo",
    "--pref_beta": "--set preference.beta=VALUE",
    "--stage": "--set objective=preference --set preference.loss=dpo (kto,",
    "--rlhf_type": "--set objective=preference --set preference.loss=dpo (kto,",
    "--adapter": "--set lora.adapter=DIR",
    "--lora.rank": "--set lora.rank=VALUE",
}


@pytest.mark.parametrize("option", MEANT)
def test_an_option_of_other_trainers_is_answered_with_ours(option: str) -> None:
    done = CliRunner().invoke(cli, ["train", option, "16"])
    assert done.exit_code == 2
    assert f"No such option '{option}': " in done.stderr
    assert any(text in done.stderr for text in (MEANT[option], MEANT[option].replace("=VALUE", "=16")))
    assert "Did you mean" not in done.stderr


@pytest.mark.parametrize(("value", "hint"), [
    ("objective=kto", "--set objective=preference --set preference.loss=kto"),
    ("objective=dpo", "--set objective=preference --set preference.loss=dpo"),
    ("objective=sft", "--set objective=supervised"),
    ("preference.loss=sigmoid", "--set preference.loss=dpo"),
    ("preference.loss=sppo_hard", "--set preference.loss=sppo"),
])  # fmt: skip
def test_a_value_of_other_trainers_is_answered_with_ours(value: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, overrides=[value], needs_inputs=False)
    assert hint in str(caught.value)


def test_several_options_of_a_preference_trainer_come_to_a_whole_command() -> None:
    words = ["train", "--loss_type", "kto", "--beta", "0.2"]
    said = CliRunner().invoke(cli, words).stderr
    assert "--set preference.beta=0.2 --set objective=preference --set preference.loss=kto" in said
    refused = CliRunner().invoke(cli, ["train", "--loss_type", "aot", "--beta", "0.2"]).stderr
    assert "--loss_type: a training that is not here (loss_type: aot)" in refused


def test_a_slip_of_the_fingers_is_answered_with_the_nearest_option() -> None:
    assert "--epochs" in CliRunner().invoke(cli, ["train", "--epoch", "3"]).stderr
    assert "': " not in CliRunner().invoke(cli, ["train", "--zzz"]).stderr.splitlines()[-1]


@pytest.mark.parametrize("option", ["--gradient-accumulation-steps", "--gradient_accumulation_steps"])
def test_gradient_accumulation_is_explained_by_whatever_name(option: str) -> None:
    done = CliRunner().invoke(cli, ["train", option, "8"])
    assert isinstance(done.exception, UsageError)
    assert "--batch-size N" in str(done.exception.hint)


def test_every_hint_that_names_an_option_of_train_names_one() -> None:
    from loradock.commands.train import train

    known = {name for each in train.params if isinstance(each, click.Option) for name in each.opts}
    assert {hint.split()[0] for hint in MEANT.values() if hint.startswith("--")} <= known


SECTIONS = "model|data|lora|train|evaluation|checkpoints|logging|after"
TOOLS = {
    "axolotl": (
        "base_model datasets dataset_prepared_path val_set_size output_dir adapter lora_model_dir "
        "sequence_len sample_packing pad_to_sequence_len lora_r lora_alpha lora_dropout lora_target_modules "
        "lora_target_linear lora_modules_to_save wandb_project wandb_entity wandb_name "
        "gradient_accumulation_steps micro_batch_size num_epochs optimizer lr_scheduler train_on_inputs "
        "group_by_length bf16 fp16 gradient_checkpointing early_stopping_patience resume_from_checkpoint "
        "auto_resume_from_checkpoints logging_steps xformers_attention flash_attention sdp_attention "
        "loss_watchdog_threshold warmup_steps warmup_ratio evals_per_epoch saves_per_epoch save_total_limit "
        "debug deepspeed fsdp special_tokens chat_template rl peft_use_dora peft_use_rslora "
        "neftune_noise_alpha hub_model_id load_in_8bit"
    ),
    "TRL": (
        "model_name_or_path model_revision dtype torch_dtype attn_implementation use_peft lora_task_type "
        "use_rslora use_dora load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant dataset_name "
        "dataset_text_field dataset_num_proc packing padding_free completion_only_loss assistant_only_loss "
        "activation_offloading eos_token pad_token num_train_epochs per_device_train_batch_size "
        "per_device_eval_batch_size eval_strategy save_strategy report_to run_name push_to_hub do_train "
        "do_eval lr_scheduler_type use_liger_kernel optim adam_beta1 max_grad_norm data_seed torch_compile "
        "load_best_model_at_end metric_for_best_model streaming ddp_timeout weight_decay trust_remote_code"
    ),
    "unsloth": (
        "model_name max_seq_length load_in_16bit r target_modules use_gradient_checkpointing random_state "
        "save_method quantization_method save_gguf full_finetuning"
    ),
    "LLaMA-Factory": (
        "stage finetuning_type template dataset dataset_dir cutoff_len max_samples overwrite_cache "
        "preprocessing_num_workers dataloader_num_workers lora_target lora_rank additional_target "
        "quantization_bit flash_attn mask_history train_on_prompt neat_packing val_size eval_dataset "
        "plot_loss pure_bf16 loraplus_lr_ratio adapter_name_or_path export_dir rope_scaling use_unsloth "
        "mix_strategy interleave_probs overwrite_output_dir"
    ),
    "litgpt": (
        "checkpoint_dir out_dir precision quantize devices num_nodes logger_name global_batch_size "
        "train.global_batch save_interval eval_interval log_interval"
    ),
    "torchtune": (
        "epochs batch_size enable_activation_checkpointing log_every_n_steps shuffle clip_grad_norm "
        "num_warmup_steps run_val_every_n_steps tokenizer"
    ),
    "a command line": ("name quiet yes force verbose attn dry_run config gpus nproc_per_node local_rank cache_dir"),
}
VERBS = (
    "eval evaluation list ls ps status doctor check inference infer predict sft finetune fine-tune "
    "finetune_lora lora run resume version help merge_lora convert quantize preprocess tokenize estimate "
    "presets validate serve api webui webchat download push dpo grpo ppo rm kto pretrain logs stop "
    "chatbot score benchmark k8s clean compare llamafactory-cli swift axolotl trl"
)


@pytest.mark.thin(4)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_each_option_that_users_of_a_tool_type_is_taken_or_answered(tool: str, command: str) -> None:
    for name in TOOLS[tool].split():
        for option in (f"--{name}", f"--{name.replace('_', '-')}"):
            done = CliRunner().invoke(cli, [command, option, "16", "--no-such-option-at-all"])
            text = done.stderr or str(done.exception)
            if f"No such option '{option}'" in text or isinstance(done.exception, UsageError):
                assert f"'{option}': " in text or "is not a setting" in text, text
                assert "Did you mean" not in text
            else:
                assert "no-such-option-at-all" in text, text


def test_each_name_of_another_tool_leads_to_a_key_that_there_is() -> None:
    known = {key.name for key in keys()}
    assert {name: key for name, key in RENAMED.items() if key not in known} == {}
    assert RENAMED.keys() & EXPLAINED.keys() == set()
    for text in EXPLAINED.values():
        for key in re.findall(
            r"\b(?:model|data|lora|train|evaluation|checkpoints|logging|after)\.[a-z_0-9N.]*[a-z_]", text
        ):
            assert key.replace(".0.", ".N.").removesuffix(".text") in known | {"data.sources"}, text


@pytest.mark.parametrize("verb", VERBS.split())
def test_each_verb_that_others_have_is_answered(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb])
    assert done.exit_code == 2
    hint = done.stderr.splitlines()[-1].removeprefix(f"Error: No such command '{verb}': ")
    assert not hint.startswith("Error")
    words = hint.split()
    if words[0] == "loradock" and not words[1].startswith("-"):
        assert words[1] in COMMANDS


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("data tokenize", "loradock data show"),
        ("data preview", "loradock data show"),
        ("data prepare", "loradock data stats"),
        ("data dedupe", "data.deduplicate=exact"),
        ("data stat", "loradock data stats"),
        ("config init", "loradock config presets"),
        ("config migrate", "loradock config import"),
        ("checkpoint merge", "loradock merge RUN OUT --checkpoint STEP"),
        ("checkpoint resume", "loradock train --resume"),
        ("export ollama", "loradock export gguf"),
        ("export Merged", "loradock merge RUN OUT"),
    ],
)
def test_a_verb_that_others_have_below_one_of_ours_is_answered(words: str, answer: str) -> None:
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert f"No such command '{words.split()[1]}': " in done.stderr
    assert answer in done.stderr
    assert CliRunner().invoke(cli, [words.split()[0], "zzzz"]).stderr.endswith("No such command 'zzzz'\n")


def test_a_slip_in_a_verb_and_a_verb_that_is_left_out_are_answered() -> None:
    assert "'trane': loradock train" in CliRunner().invoke(cli, ["trane"]).stderr
    assert "loradock train run.yaml" in CliRunner().invoke(cli, ["run.yaml"]).stderr
    assert CliRunner().invoke(cli, ["zzzz"]).stderr.endswith("No such command 'zzzz'\n")


@pytest.mark.parametrize("files", [["a.jsonl", "b.jsonl"], ["a.csv", "b.csv", "c.csv"], ["a.json", "b.json", "c.json"]])
def test_a_pattern_that_the_shell_expanded_is_told_to_be_quoted(files: list[str]) -> None:
    for command in (["train"], ["data", "stats"], ["plan"]):
        done = CliRunner().invoke(cli, [*command, "--model", "m", "--data", *files])
        assert done.exit_code == 2
        assert "goes in quotes, --data '*." in done.stderr, done.stderr
    assert "at most one CONFIG" in CliRunner().invoke(cli, ["train", "a.yaml", "b.yaml"]).stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("chat --model runs/a", "it is an argument: cli chat MODEL"),
        ("generate --adapter_name_or_path runs/a", "it is an argument: cli generate MODEL"),
        ("merge --adapter runs/a", "it is an argument: cli merge RUN|ADAPTER OUT"),
        ("export --model merged", "a command comes first: cli export gguf"),
        ("generate runs --prompt hello", "echo TEXT | loradock chat MODEL"),
        ("generate runs --dataset rows.jsonl", "--input FILE"),
    ],
)
def test_an_option_for_what_is_an_argument_here_is_answered_with_what_to_type(words: str, hint: str) -> None:
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert hint in done.stderr
    assert "': " not in CliRunner().invoke(cli, ["chat", "--zzz"]).stderr.splitlines()[-1]


def test_rows_that_another_tool_names_are_carried_over_too() -> None:
    words = ["--model_name_or_path", "base", "--learning_rate", "1e-4", "--lora_r", "8", "--dataset", "rows.jsonl"]
    done = CliRunner().invoke(cli, ["train", *words])
    assert "--dataset: --data rows.jsonl" in done.stderr
    assert done.stderr.partition("All together: ")[2].count("--data rows.jsonl") == 1


def test_a_model_given_as_a_configuration_is_answered_with_its_option(llama: Path) -> None:
    done = CliRunner().invoke(cli, ["train", str(llama), "--data", "rows.jsonl"])
    assert f"--model {llama}" in str(done.exception)
    done = CliRunner().invoke(cli, ["train", str(llama.parent), "--data", "rows.jsonl"])
    assert f"ls {llama.parent}" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("learning_rate=1e-4",), "--lr 1e-4"),
        (("lr=1e-4", "lora_r=8"), "--lr 1e-4 --rank 8"),
        (("run.yaml", "train.max_steps=3"), "--set train.max_steps=3"),
        (("lora.targets=[q_proj, v_proj]",), "--set 'lora.targets=[q_proj, v_proj]'"),
        (("model=my base", "data=rows.jsonl"), "--model 'my base' --data rows.jsonl"),
        (("dataset=rows.jsonl", "model.model_path=base"), "--data rows.jsonl --model base"),
        (("eval_steps=auto", "max_steps=1e3"), "--set evaluation.every=auto --set train.max_steps=1e3"),
        (("train.lr=1e-4", "data.cutoff_len=64"), "--lr 1e-4 --max-length 64"),
        (("data.sources.0.weight=2", "deterministic=true"), "--set data.sources.0.weight=2 --set deterministic=true"),
        (("objective=preference", "preference.loss=dpo"), "--set objective=preference --set preference.loss=dpo"),
    ],
)
def test_a_setting_without_its_option_is_answered_with_it(words: tuple[str, ...], typed: str) -> None:
    done = CliRunner().invoke(cli, ["train", *words])
    assert done.exit_code == 2
    assert done.output.rstrip().endswith(f": settings are options here: {typed}")
    others = {flag: value for flag, value in (("--model", "."), ("--data", "r.jsonl")) if flag not in typed}
    base = [word for pair in others.items() for word in pair]
    followed = CliRunner().invoke(cli, ["config", "validate", *base, *shlex.split(typed)])
    assert followed.exit_code == 0, followed.exception


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("bf16=true", "--set model.compute_dtype=bfloat16"),
        ("gradient_accumulation_steps=4", "it follows from train.global_batch"),
        ("train.zzz=3", "train.zzz=3: unknown key: train.zzz; known here: "),
        ("train.lr=3", "train.learning_rate must be a number"),
        ("train.max_steps=few", "train.max_steps must be"),
        ("lora=8", "lora=8: lora is a section"),
    ],
)
def test_a_setting_that_no_option_takes_is_answered_with_why(setting: str, why: str) -> None:
    done = CliRunner().invoke(cli, ["train", "--model", ".", "--data", "rows.jsonl", setting])
    assert done.exit_code == 2
    assert why in done.output
    assert "settings are options here" not in done.output


def test_an_option_before_the_verb_of_a_group_is_answered_with_the_verbs() -> None:
    done = CliRunner().invoke(cli, ["export", "--format", "gguf"])
    assert done.exit_code == 2
    assert done.output.rstrip().endswith("No such option '--format': a command comes first: cli export gguf")
