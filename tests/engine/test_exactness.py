"""Reruns, resumes and evaluations change nothing: on a CPU, to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny import adapter_bytes, losses, train

from loradock.engine.checkpoints import visible

RUN = ("train.max_steps=12", "train.global_batch=8", "train.micro_batch=2", "lora.rank=4", "lora.dropout=0.1")


def test_a_rerun_is_bit_exact(tmp_path: Path, llama: Path, rows: Path) -> None:
    first, second = (train(tmp_path / name, *RUN, model=llama, data=rows) for name in ("a", "b"))
    assert losses(first) == losses(second)
    assert adapter_bytes(first) == adapter_bytes(second)


def test_another_seed_gives_another_adapter(tmp_path: Path, llama: Path, rows: Path) -> None:
    first = train(tmp_path / "a", *RUN, model=llama, data=rows)
    second = train(tmp_path / "b", *RUN, "train.seed=1", model=llama, data=rows)
    assert adapter_bytes(first) != adapter_bytes(second)


def test_a_resume_in_the_middle_of_an_epoch_is_bit_exact_with_dropout_packing_and_accumulation(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    settings = (*RUN, "train.packing=true", "data.max_length=64", "checkpoints.every=5", "checkpoints.keep=9")
    whole = train(tmp_path / "whole", *settings, model=llama, data=rows)
    cut = tmp_path / "cut"
    train(cut, *settings, model=llama, data=rows)
    for step in (10, 12):
        shutil.rmtree(cut / "checkpoints" / f"checkpoint-{step}")
    shutil.rmtree(cut / "adapter")
    assert [step for step, _ in visible(cut / "checkpoints")] == [5]
    resumed = train(cut, *settings, model=llama, data=rows)
    assert adapter_bytes(resumed) == adapter_bytes(whole)
    assert losses(resumed) == losses(whole)
    assert resumed.record["resumed_from"] == "checkpoint-5"


def test_an_evaluation_between_the_steps_changes_nothing(tmp_path: Path, llama: Path, rows: Path) -> None:
    settings = (*RUN, "train.max_steps=20", "data.validation=8")
    without = train(tmp_path / "a", *settings, "evaluation.every=20", model=llama, data=rows)
    between = train(tmp_path / "b", *settings, "evaluation.every=3", model=llama, data=rows)
    assert len(between.evaluations) == 7
    assert losses(without) == losses(between)
    assert adapter_bytes(without) == adapter_bytes(between)


def test_adapters_and_optimiser_state_are_float32_fresh_and_resumed(tmp_path: Path, llama: Path, rows: Path) -> None:
    run = tmp_path / "run"
    settings = (*RUN, "checkpoints.every=6", "model.compute_dtype=bfloat16")
    fresh = train(run, *settings, model=llama, data=rows)
    found = fresh.record["dtypes"]
    assert (found["adapters"], found["optimiser state"], found["compute"]) == ("float32", "float32", "bfloat16")
    assert found["base"] == "nf4 in uint8"
    shutil.rmtree(run / "checkpoints" / "checkpoint-12")
    resumed = train(run, *settings, model=llama, data=rows)
    assert resumed.record["dtypes"] == found
    exported = load_file(resumed.adapter / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}


def test_fresh_adapters_keep_the_bits_of_their_initialisation(tmp_path: Path, llama: Path, rows: Path) -> None:
    """TRL rounds them to bfloat16 while it is made; a float32 copy of that would have lost bits."""
    settings = ("train.max_steps=1", "train.learning_rate=1e-30", "lora.rank=4")
    exported = load_file(
        train(tmp_path / "run", *settings, model=llama, data=rows).adapter / "adapter_model.safetensors"
    )
    weights = torch.cat([tensor.flatten() for name, tensor in exported.items() if "lora_A" in name])
    assert not torch.equal(weights, weights.to(torch.bfloat16).float())


def test_loader_workers_change_nothing(tmp_path: Path, llama: Path, rows: Path) -> None:
    none = train(tmp_path / "a", *RUN, "train.workers=0", model=llama, data=rows)
    two = train(tmp_path / "b", *RUN, "train.workers=2", model=llama, data=rows)
    assert losses(none) == losses(two)
    assert adapter_bytes(none) == adapter_bytes(two)
