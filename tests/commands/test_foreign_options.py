"""Several options of another trainer are answered all at once, and what is to be typed in their place is taken."""

from __future__ import annotations

import shlex

import pytest
import yaml
from click.testing import CliRunner

from loradock.cli import cli

LINES = {
    "trl": (
        """--model_name_or_path base --dataset_name rows.jsonl --lora_r 8 --lora_target_modules q_proj v_proj
        --load_in_4bit --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --learning_rate 2.0e-4
        --optim=adamw_torch --push_to_hub --seed 5""",
        {
            "lora": {"rank": 8, "targets": ["q_proj", "v_proj"]},
            "train": {"global_batch": 16, "micro_batch": 2, "seed": 5},
        },
        ["--lora_r: --rank 8", "--push_to_hub: nothing is uploaded", "--optim: leave it out"],
    ),
    "axolotl": (
        """--base_model base --sequence_len 512 --micro_batch_size 4 --num_epochs 2 --data rows.jsonl
        --lr_scheduler linear""",
        {"data": {"max_length": 512}, "train": {"global_batch": 4, "epochs": 2.0, "schedule": "linear"}},
        ["--sequence_len: --max-length 512", "--num_epochs: --epochs 2"],
    ),
    "llama-factory": (
        """--model_name_or_path base --finetuning_type lora --cutoff_len 256 --lora_rank 4 --quantization_bit 8
        --data rows.jsonl --stage sft --warmup_ratio 0.1""",
        {"data": {"max_length": 256}, "lora": {"rank": 4}, "model": {"quantization": "int8"}, "train": {"warmup": 0.1}},
        ["--quantization_bit: --set model.quantization=int8", "--stage: leave it out"],
    ),
}


@pytest.mark.parametrize("tool", LINES)
def test_options_of_a_tool_become_one_command_that_is_taken(tool: str) -> None:
    words, ours, answers = LINES[tool]
    done = CliRunner().invoke(cli, ["train", *words.split()])
    assert done.exit_code == 2
    for answer in answers:
        assert answer in done.stderr
    together = done.stderr.partition("All together: ")[2].strip()
    command = shlex.split(together)
    arguments = command[command.index("train") + 1 :]
    shown = CliRunner().invoke(cli, ["config", "show", *arguments])
    assert shown.exit_code == 0, (together, shown.output, shown.exception)
    assert "has no effect" not in shown.stderr
    found = yaml.safe_load(shown.stdout)
    for section, values in ours.items():
        assert values.items() <= found[section].items()
    assert found["model"]["name"] == "base"
    assert found["data"]["sources"][0]["path"] == "rows.jsonl"


def test_ours_among_them_stay_as_they_are_and_a_name_of_nobody_is_said_so() -> None:
    words = ["run.yaml", "--set", "lora.dropout=0.1", "--lora_r", "8", "--frobnicate", "--max-steps", "5"]
    done = CliRunner().invoke(cli, ["train", *words])
    assert "--frobnicate: no key here does it" in done.stderr
    assert "train run.yaml --set lora.dropout=0.1 --max-steps 5 --rank 8\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--optim adamw_8bit", "'--optim': --set train.optimizer=adamw_8bit"),
        ("--optim=adafactor", "'--optim': --set train.optimizer=adafactor"),
        ("--optim muon", "'--optim': muon: Muon is left out: measured on LoRA's matrices"),
        ("--set train.optimizer=muon", "--set train.optimizer=auto; Muon is left out"),
        ("--use_muon --lora_rank 8", "--use_muon: Muon is left out"),
    ],
)
def test_one_option_is_answered_with_its_value_or_with_why_there_is_none(words: str, answer: str) -> None:
    given = shlex.split(f"train --model base --data rows.jsonl {words}")
    refused = CliRunner().invoke(cli, given)
    assert answer in refused.output + str(refused.exception)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--warmup_ratio x", "--set train.warmup=VALUE"),
        ("--warmup_ratio", "--set train.warmup=VALUE"),
        ("--max_grad_norm nan", "--set train.max_grad_norm=VALUE"),
        ("--per_device_train_batch_size x", "--set train.micro_batch=VALUE"),
        ("--optim", "--set train.optimizer=VALUE"),
    ],
)
def test_what_is_no_value_becomes_none_of_ours(words: str, answer: str) -> None:
    alone = CliRunner().invoke(cli, ["train", *words.split()])
    assert alone.stderr.strip().endswith(f": {answer}")
    beside = CliRunner().invoke(cli, ["train", *words.split(), "--lora_r", "8"])
    assert beside.stderr.strip().endswith("loradock train --rank 8") or "cli train --rank 8" in beside.stderr
    assert "True" not in beside.stderr
    assert "leave it out" not in beside.stderr
