"""What an unknown key is told to be: a misspelt key of ours, what another tool calls it, or what is known there."""

from __future__ import annotations

import pytest

from loradock.config.fields import annotation_at
from loradock.config.suggest import RENAMED, unknown_key

FOREIGN = (
    "adapter special_tokens tokenizer_type model_type strict lora_target_linear xformers_attention local_rank debug "
    "hub_model_id wandb_entity dataset_prepared_path shuffle_merged_datasets roles_to_train train_on_eos stage "
    "finetuning_type overwrite_cache plot_loss max_samples predict_with_generate save_strategy formatting_func "
    "neat_packing enable_liger_kernel rope_scaling use_unsloth export_dir task_type fan_in_fan_out format columns "
    "nodes num_gpus messages validation_file eval_file"
).split()
"""Keys of axolotl, LLaMA-Factory, TRL and unsloth."""


@pytest.mark.parametrize("name", FOREIGN)
def test_a_key_of_another_tool_is_not_taken_for_one_of_ours_that_is_spelt_a_little_like_it(name: str) -> None:
    hint = unknown_key((name,)).hint
    assert hint == f"did you mean {RENAMED[name]}?" if name in RENAMED else "did you mean" not in hint


@pytest.mark.parametrize(
    ("name", "key"), [("modle", "model"), ("trian", "train"), ("dat", "data"), ("loar", "lora"), ("eval", "evaluation")]
)
def test_a_misspelt_section_is_recognised(name: str, key: str) -> None:
    assert unknown_key((name,)).hint == f"did you mean {key}?"


def test_each_key_that_another_tool_calls_otherwise_is_one_that_there_is() -> None:
    assert not [key for key in RENAMED.values() if annotation_at(tuple(key.split("."))) is None]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("model.path", "model.name"),
        ("model.id", "model.name"),
        ("data.path", "data.sources"),
        ("data.name", "data.sources"),
        ("data.val", "data.validation"),
        ("eval.steps", "evaluation.every"),
        ("evaluation.steps", "evaluation.every"),
        ("optimizer.name", "train.optimizer"),
        ("train.batch", "train.global_batch"),
        ("save.steps", "checkpoints.every"),
        ("lora.target-modules", "lora.targets"),
        ("output.dir", "output"),
    ],
)
def test_a_key_below_a_section_is_what_others_call_with_an_underscore(key: str, meant: str) -> None:
    assert unknown_key(tuple(key.split("."))).hint == f"did you mean {meant}?"
