"""Bases whose files hold NF4, as bitsandbytes writes it: opened as they are, trained, answered with, merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes import functional
from bitsandbytes.nn import Linear4bit
from jobs import assert_close, gradients, job_of, loop_of
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny import copy_tree
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from whole_runs import adapter_bytes, losses, train

from loradock.config.load import load as load_config
from loradock.config.sections.model import ModelConfig
from loradock.errors import LoradockError, ModelError
from loradock.model import load, prequantised, shape, source
from loradock.training.passes import MicroStep
from loradock.use.inference.opener import find
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.run import run

pytestmark = pytest.mark.thin(2)

RUN = ("train.max_steps=4", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2", "checkpoints.every=2")
ONE_PASS = ("train.micro_batch=8", "train.packing=false", "train.checkpointing=false", "model.compute_dtype=float32")
SKIPPED = "model.layers.1.mlp"

Published = Callable[..., Path]


@pytest.fixture(scope="module")
def published(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A base that transformers saved in 4 bit, once for each way."""
    place = tmp_path_factory.mktemp("published")

    def save(name: str = "plain", **settings: Any) -> Path:
        if not (place / name).exists():
            asked = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, **settings}
            config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **asked)
            options: dict[str, Any] = {"quantization_config": config, "dtype": torch.bfloat16, "device_map": "cpu"}
            AutoModelForCausalLM.from_pretrained(llama, **options).save_pretrained(place / name)
            AutoTokenizer.from_pretrained(llama).save_pretrained(place / name)
        return place / name

    return save


def dynamic(published: Published) -> Path:
    """As unsloth's dynamic quantisation: some layers are left in 16 bit."""
    return published("dynamic", llm_int8_skip_modules=["lm_head", SKIPPED])


def twin_of(base: Path, adapter: Path) -> Any:
    """Plain PEFT with the adapter on the files' values in float64, each weight made dense by bitsandbytes."""
    stored = AutoModelForCausalLM.from_pretrained(base, device_map="cpu")
    dense: dict[str, torch.Tensor] = {}
    for name, module in stored.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            value = parameter.data
            if isinstance(module, Linear4bit) and key == "weight":
                stored_as: Any = parameter
                state = stored_as.quant_state
                state.dtype = torch.float32
                value = functional.dequantize_4bit(parameter.data, state)
            dense[f"{name}.{key}"] = value.double()
    plain = AutoModelForCausalLM.from_config(prequantised.plain(stored.config)).double()
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(dense[name])
    return PeftModel.from_pretrained(plain, str(adapter), is_trainable=True, autocast_adapter_dtype=False).double()


def of_flat(job: Any, backend: Any) -> dict[str, torch.Tensor]:
    flat = backend.model.adapters
    return {
        name: flat.view(flat.gradient, [parameter], parameter.shape)
        for name, parameter in job.model.named_parameters()
        if parameter.requires_grad
    }


@pytest.mark.parametrize("way", ["plain", "dynamic"])
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_loss_and_gradients_are_those_of_the_files_values_in_float64(
    way: str, engine: str, published: Published, rows: Path, tmp_path: Path
) -> None:
    base = published() if way == "plain" else dynamic(published)
    job = job_of(tmp_path, *ONE_PASS, f"engine={engine}", model=base, data=rows)
    backend: Any = loop_of(job).backend
    step = job.steps[0]
    (batch,) = [backend.tensors(batch)[0] for batch in step.micro_batches]
    at = MicroStep(step=0, index=0, count=1)
    loss = float(backend.forward_backward(batch, scale=1 / step.supervised_tokens, at=at))
    computed = gradients(job.model) if engine == "peft" else of_flat(job, backend)
    job.model.save_pretrained(tmp_path / "adapter")
    twin = twin_of(base, tmp_path / "adapter")
    inputs, _ = job.objective.tensors(step.micro_batches[0], pad_token_id=0, pad_to_multiple=1)
    out = twin(**inputs)
    out.loss.backward()
    assert loss == pytest.approx(out.loss.item(), rel=1e-5)
    assert_close(computed, {name: gradient.float() for name, gradient in gradients(twin).items()})


@pytest.mark.usefixtures("forked_proof")
def test_a_run_resumes_bit_by_bit_and_its_adapter_is_merged_onto_the_files_values(
    published: Published, rows: Path, tmp_path: Path
) -> None:
    base = dynamic(published)
    whole = train(tmp_path / "whole", *RUN, model=base, data=rows)
    cut = copy_tree(whole.directory, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "checkpoint-4")
    shutil.rmtree(cut / "adapter")
    again = train(cut, *RUN, model=base, data=rows)
    assert again.record["resumed_from"] == "checkpoint-2"
    assert losses(again) == losses(whole)
    assert adapter_bytes(again) == adapter_bytes(whole)
    card = (whole.adapter / "README.md").read_text()
    assert "as the base's files hold it" in card
    assert "quantization_config" not in card
    with prepared(whole.directory, Asked()) as job:
        run(job, tmp_path / "merged", is_full=True)
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ids = torch.arange(5, 37)[None]
    with torch.no_grad():
        expected = twin_of(base, whole.adapter)(ids).logits.softmax(-1)
        assert torch.allclose(merged(ids).logits.softmax(-1).double(), expected, atol=1e-4)


def test_an_adapter_of_which_nothing_is_recorded_opens_on_a_base_without_double_quantisation(
    published: Published, rows: Path, tmp_path: Path
) -> None:
    base = published("single", bnb_4bit_use_double_quant=False)
    single = ("model.double_quant=false", "train.max_steps=1", "train.global_batch=2")
    result = train(tmp_path / "run", *single, model=base, data=rows)
    adapter = copy_tree(result.adapter, tmp_path / "adapter")
    (adapter / "training.json").unlink()
    opened = find(adapter, quantization="nf4", base=str(base))
    assert (opened.asked.quantization, opened.asked.double_quant) == ("nf4", False)
    assert find(base, quantization="nf4").asked.double_quant is False


def test_the_plan_counts_what_files_hold_in_16_bit(published: Published, rows: Path, tmp_path: Path) -> None:
    def facts(base: Path) -> Any:
        config = load_config(None, overrides=[], shortcuts={"--model": str(base), "--data": [str(rows)]}).config
        return shape.inspect(source.find(config.model), config)

    plain, mixed = facts(published()), facts(dynamic(published))
    assert (plain.is_prequantised, plain.dense_parameters) == (True, 0)
    assert mixed.dense_parameters == 3 * 64 * 128
    assert mixed.reached_parameters == plain.reached_parameters


def without_state(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if prequantised.STATE not in name}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def cut_short(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name][:-64].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def spoilt_state(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    name = f"model.layers.0.mlp.up_proj.weight{prequantised.STATE}"
    tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_state, "has no weights in NF4, and its config.json says so"),
        (cut_short, r"mlp.up_proj.weight is to hold 8,192 weights in NF4, and its file has 4,032 bytes"),
        (spoilt_state, "does not say how its weight is quantised"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(
    spoil: Callable[[Path], None], words: str, published: Published, tmp_path: Path
) -> None:
    base = copy_tree(published(), tmp_path / "spoilt")
    spoil(base)
    config = ModelConfig(name=str(base))
    with pytest.raises(ModelError, match=words) as caught:
        load.load_whole(source.find(config), config, dtype=torch.float32, device="cpu")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ({}, {"quantization": "none"}, "holds its weights in NF4, and none is asked for"),
        ({}, {"quantization": "int8"}, "holds its weights in NF4, and int8 is asked for"),
        ({}, {"double_quant": False}, "holds NF4 with double quantisation"),
        ({"bnb_4bit_quant_type": "fp4"}, {}, r"is already quantised \(bitsandbytes, fp4\)"),
    ],
)
def test_what_is_not_asked_for_or_not_opened_is_refused_by_name(
    settings: dict[str, Any], asked: dict[str, Any], words: str, published: Published
) -> None:
    base = published("-".join(map(str, settings.values())) or "plain", **settings)
    config = ModelConfig(name=str(base)).model_copy(update=asked)
    with pytest.raises(LoradockError, match=words) as caught:
        load.load_whole(source.find(config), config, dtype=torch.float32, device="cpu")
    assert caught.value.hint


def test_a_weight_that_came_to_be_quantised_otherwise_is_refused(
    published: Published, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = load.coverage
    monkeypatch.setattr(load, "coverage", lambda model: replace(right(model), quantised_weights=8192))
    with pytest.raises(ModelError, match="holds 73,728 weights in NF4, and 8,192 came to be in it"):
        job_of(tmp_path, *ONE_PASS, model=published(), data=rows)
