"""The DeepSpeed configuration of a run: what follows from the plan, and what a file of one's own may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from facts.recorded import data, machine, models

from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, InputMissing
from loradock.plan import planner, zero_config
from loradock.plan.plan import Plan

ROOT = Path(__file__).parents[2]


def asked(*settings: str, stage: int = 2) -> RunConfig:
    overrides = [f"train.parallel=zero{stage}", "train.global_batch=64", "train.micro_batch=4", "train.packing=false"]
    overrides += settings
    return load(None, overrides=overrides, shortcuts={"--model": "/srv/base", "--data": ["rows.jsonl"]}).config


def planned(config: RunConfig) -> Plan:
    facts = machine("h200", world_size=4)
    return planner.make(config, facts=facts, model=models()["tinyllama-1.1b"], data=data())


def made(*settings: str, stage: int = 2) -> dict[str, Any]:
    config = asked(*settings, stage=stage)
    return zero_config.configuration(config, planned(config), stage=stage)


def own(folder: Path, content: Any) -> str:
    file = folder / "zero.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return f"train.deepspeed={file}"


def refusal(folder: Path, content: Any, *settings: str, stage: int = 2) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        made(own(folder, content), *settings, stage=stage)
    return caught.value


def test_the_plan_decides_stage_clipping_and_dtype() -> None:
    found = made("train.max_grad_norm=0.3", stage=3)
    assert found["zero_optimization"]["stage"] == 3
    assert found["gradient_clipping"] == 0.3
    assert found["torch_autocast"] == {
        "enabled": True,
        "dtype": "torch.bfloat16",
        "lower_precision_safe_modules": [],
    }
    assert "bf16" not in found, "it would copy the adapters to 16 bits"
    assert made("model.compute_dtype=float32")["torch_autocast"]["enabled"] is False


def test_its_optimiser_is_the_run_s_with_the_run_s_hyperparameters() -> None:
    found = made("train.betas=[0.9,0.95]", "train.eps=1e-6", "train.weight_decay=0.1")["optimizer"]
    parameters = {"lr": 2e-4, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    assert found == {"type": "AdamW", "params": parameters}


def test_a_batch_of_deepspeed_is_a_micro_batch_whatever_a_step_is() -> None:
    found = made()
    assert found["train_micro_batch_size_per_gpu"] == found["gradient_accumulation_steps"] == 1
    assert "train_batch_size" not in found


def test_offload_takes_the_optimiser_to_the_host_and_under_zero_3_the_weights_too() -> None:
    two = made("train.cpu_offload=true")["zero_optimization"]
    three = made("train.cpu_offload=true", stage=3)["zero_optimization"]
    held = {"device": "cpu", "pin_memory": True}
    assert two["offload_optimizer"] == three["offload_optimizer"] == three["offload_param"] == held
    assert "offload_param" not in two
    assert made("train.cpu_offload=true")["zero_force_ds_cpu_optimizer"] is False, "its Adam has to be compiled"
    assert "offload_optimizer" not in made("train.cpu_offload=false")["zero_optimization"]


def test_a_file_of_ones_own_is_merged_section_by_section(tmp_path: Path) -> None:
    content = {
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "overlap_comm": False},
        "comms_logger": {"enabled": True},
    }
    found, alone = made(own(tmp_path, content), stage=3), made(stage=3)
    zero = found["zero_optimization"]
    assert zero == {**alone["zero_optimization"], **content["zero_optimization"]}
    assert found["comms_logger"] == {"enabled": True}
    assert {key: value for key, value in found.items() if key not in content} == {
        key: value for key, value in alone.items() if key not in content
    }


def test_a_file_as_transformers_users_write_it_with_auto_says_nothing_of_its_own(tmp_path: Path) -> None:
    content = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"},
    }
    assert made(own(tmp_path, content)) == made()


def test_a_file_may_repeat_what_the_run_says(tmp_path: Path) -> None:
    content = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}},
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2},
    }
    assert made(own(tmp_path, content)) == made()


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        ({"train_batch_size": 128}, "train_batch_size is 128, and the run's is 64", "--set train.global_batch=128"),
        ({"train_micro_batch_size_per_gpu": 8}, "is 8, and the run's is 4", "--set train.micro_batch=8"),
        ({"gradient_accumulation_steps": 9}, "is 9, and the run's is 4", 'write "auto"'),
        ({"gradient_clipping": 0.5}, "is 0.5, and the run's is 1.0", "--set train.max_grad_norm=0.5"),
        ({"optimizer": {"type": "Lion"}}, 'optimizer.type is "Lion", and the run\'s is AdamW', 'write "AdamW"'),
        ({"optimizer": {"params": {"lr": 1e-3}}}, "lr is 0.001, and the run's is 0.0002", "train.learning_rate=0.001"),
        (
            {"optimizer": {"params": {"betas": [0.9, 0.95]}}},
            "optimizer.params.betas is [0.9, 0.95], and the run's is [0.9, 0.999]",
            "--set train.betas=[0.9,0.95]",
        ),
        ({"optimizer": {"params": {"eps": 1e-6}}}, "eps is 1e-06, and the run's is 1e-08", "--set train.eps=1e-06"),
        ({"optimizer": {"params": {"torch_adam": True}}}, "key: optimizer.params.torch_adam", "delete it"),
        ({"scheduler": {}}, "scheduler cannot be set in the DeepSpeed file", "--set train.schedule"),
        ({"activation_checkpointing": {}}, "activation_checkpointing cannot be set", "--set train.checkpointing"),
        ({"wandb": {"enabled": True}}, "wandb cannot be set", "logging.trackers"),
        ({"fp16": {"enabled": True}}, "fp16 asks for float16", "--set model.compute_dtype=float16"),
        ({"torch_autocast": {"enabled": True, "dtype": "float32"}}, "asks for float32", "model.compute_dtype=float32"),
        ({"zero_optimization": {"stage": 3}}, "stage is 3, and train.parallel is zero2", "--set train.parallel=zero3"),
        ({"zero_optimization": {"stage": 1}}, "stage is 1, and train.parallel is zero2", 'write "auto"'),
        ({"zero_optimization": 2}, "zero_optimization is not an object", '"stage": "auto"'),
        ({"zero_optimisation": {}}, "unsupported DeepSpeed key: zero_optimisation", "did you mean zero_optimization?"),
        ({"my_own": 1}, "unsupported DeepSpeed key: my_own", "delete it"),
    ],
)
def test_a_key_that_contradicts_the_run_is_a_problem_with_its_remedy(
    content: dict[str, Any], what: str, remedy: str, tmp_path: Path
) -> None:
    (problem,) = refusal(tmp_path, content).problems
    assert what in problem.what
    assert remedy in (problem.hint or "")
    assert problem.file == str(tmp_path / "zero.json")


def test_all_contradictions_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    content = {"train_batch_size": 1, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 3}, "other": 0}
    assert len(refusal(tmp_path, content).problems) == 4


def test_offload_that_the_run_asks_for_and_the_file_switches_off_is_a_problem(tmp_path: Path) -> None:
    content = {"zero_optimization": {"offload_optimizer": {"device": "none"}}}
    (problem,) = refusal(tmp_path, content, "train.cpu_offload=true").problems
    assert "train.cpu_offload is true" in problem.what
    assert made(own(tmp_path, content), "train.cpu_offload=false")


def test_bad_json_is_named_by_its_line(tmp_path: Path) -> None:
    (problem,) = refusal(tmp_path, '{\n  "zero_optimization": {\n    "stage": 2,\n  }\n}\n').problems
    assert problem.line == 3 or problem.line == 4
    assert "column" in problem.what


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "not a JSON object"), ('{"a": 1, "a": 2}', "has a duplicate key"), (b"\xff\xfe", "not UTF-8")],
)
def test_what_is_no_plain_object_is_refused(content: str | bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=words):
        zero_config.read(file)


def test_a_file_that_is_not_there_is_an_input_that_is_missing() -> None:
    with pytest.raises(InputMissing, match=r"train\.deepspeed: /nowhere/zero\.json cannot be read"):
        made("train.deepspeed=/nowhere/zero.json")


def test_the_release_that_was_tried_is_the_one_that_is_locked() -> None:
    versions = json.loads((ROOT / "docker" / "versions.json").read_text(encoding="utf-8"))
    assert versions["deepspeed"]["version"] == zero_config.TRIED
