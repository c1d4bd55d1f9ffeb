"""An option that other trainers have, typed here, is answered with what it is called here."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from loradock.cli import cli
from loradock.errors import UsageError

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
    "--deepspeed": "train.parallel",
    "--lora.rank": "--set lora.rank=VALUE",
}


@pytest.mark.parametrize("option", MEANT)
def test_an_option_of_other_trainers_is_answered_with_ours(option: str) -> None:
    done = CliRunner().invoke(cli, ["train", option, "16"])
    assert done.exit_code == 2
    assert f"No such option '{option}': " in done.stderr
    assert MEANT[option] in done.stderr
    assert "Did you mean" not in done.stderr


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
