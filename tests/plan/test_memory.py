"""The memory model of the peft backend: against what autograd keeps, against published figures, and part by part."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts.recorded import model, models

from loradock.facts import ModelFacts
from loradock.model.patches import PATCHES
from loradock.plan import memory
from loradock.plan.memory import peft
from loradock.plan.memory.fast import FastMemory, Setting, Shape
from loradock.plan.memory.peft import Batch

pytestmark = pytest.mark.thin(1)

TOKENS = 96
SHAPE = {"hidden": 256, "inner": 896, "key_value": 64, "vocabulary": 64}
MISTRAL = models()["mistral-7b"]
QLORA: dict[str, Any] = {"quantization": "nf4", "double_quant": True, "dtype": "bfloat16", "rank": 16}
PUBLISHED = Batch(rows=4, length=4096)


def nf4_model(layers: int, *, directory: Path, targets: Any) -> Any:
    """A random Llama in NF4 with a float32 adapter of rank 1, as the engine holds it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

    config = LlamaConfig(
        vocab_size=SHAPE["vocabulary"],
        hidden_size=SHAPE["hidden"],
        intermediate_size=SHAPE["inner"],
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        use_cache=False,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    base = AutoModelForCausalLM.from_pretrained(
        directory, quantization_config=quantization, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    for patch in PATCHES:
        patch(base)
    adapted = get_peft_model(base, LoraConfig(r=1, target_modules=targets, task_type="CAUSAL_LM"))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted.train()


@contextmanager
def kept_bytes(tokens: int) -> Iterator[dict[int, int]]:
    """Bytes of every storage with a dimension of `tokens` that autograd keeps while the block runs."""
    import torch

    kept: dict[int, int] = {}
    held: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tokens in tensor.shape:
            held.append(tensor)
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def counted(
    directory: Path, *, targets: Any = "all-linear", checkpointing: bool = False, packed: bool = False
) -> float:
    """Bytes a layer that autograd keeps for TOKENS tokens: three layers less one, halved."""
    import torch

    totals = {}
    for layers in (1, 3):
        adapted = nf4_model(layers, directory=directory / str(layers), targets=targets)
        if checkpointing:
            adapted.gradient_checkpointing_enable({"use_reentrant": False})
            adapted.enable_input_require_grads()
        ids = torch.randint(3, SHAPE["vocabulary"], (1, TOKENS))
        half = torch.arange(TOKENS // 2)
        inputs = {"position_ids": torch.cat([half, half])[None]} if packed else {}
        with kept_bytes(TOKENS) as kept, torch.autocast("cpu", torch.bfloat16):
            adapted.get_base_model().model(input_ids=ids, **inputs)
        totals[layers] = sum(kept.values())
        del adapted
        gc.collect()
    return (totals[3] - totals[1]) / 2


def same_shape(**kept: Any) -> ModelFacts:
    return model(layers=3, **SHAPE, **kept)


def test_a_layer_keeps_what_autograd_really_keeps(tmp_path: Path) -> None:
    expected = TOKENS * peft.layer_bytes_per_token(same_shape(), dtype="bfloat16")
    assert counted(tmp_path) == pytest.approx(expected, rel=0.02)


def test_fewer_adapters_keep_less_as_autograd_does(tmp_path: Path) -> None:
    facts = same_shape()
    some = ("q_proj", "k_proj", "v_proj", "o_proj")
    chosen = tuple(name for name in facts.targets if name.endswith(some))
    fewer = ModelFacts(**{**vars(facts), "targets": chosen})
    expected = TOKENS * peft.layer_bytes_per_token(fewer, dtype="bfloat16")
    assert counted(tmp_path, targets=list(some)) == pytest.approx(expected, rel=0.02)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_a_checkpointed_layer_keeps_its_input_only(tmp_path: Path) -> None:
    assert counted(tmp_path, checkpointing=True) == pytest.approx(TOKENS * SHAPE["hidden"] * 2, rel=0.02)


def test_sdpa_keeps_a_mask_of_its_own_in_every_layer_of_a_packed_row(tmp_path: Path) -> None:
    batch = Batch(rows=1, length=TOKENS, is_packed=True)
    masks = counted(tmp_path, packed=True) - counted(tmp_path)
    assert masks == pytest.approx(batch.mask_elements * 2, rel=0.02)
    facts = same_shape()
    plain: dict[str, Any] = {"checkpointing": False, "dtype": "bfloat16"}
    sdpa = peft.activation_bytes(facts, batch, attention="sdpa", **plain)
    flash = peft.activation_bytes(facts, batch, attention="flash_attention_2", **plain)
    assert sdpa - flash == 3 * batch.mask_elements * 2


def test_llama_3_8b_keeps_212_kib_a_token_and_layer_and_8_checkpointed() -> None:
    facts = models()["llama-3-8b"]
    assert peft.layer_bytes_per_token(facts, dtype="bfloat16") == 212 * 1024
    batch = Batch(rows=1, length=1)
    plain = peft.activation_bytes(facts, batch, checkpointing=False, dtype="bfloat16")
    checkpointed = peft.activation_bytes(facts, batch, checkpointing=True, dtype="bfloat16")
    assert plain - checkpointed == 31 * 212 * 1024 - 32 * 8 * 1024


def test_the_published_peak_of_mistral_7b_is_met_with_whole_logits() -> None:
    """fms-acceleration, A100-80: 20.7 GB for plain QLoRA at 4 x 4 096 tokens, 14.1 GB with fused kernels."""
    ours = peft.expected(MISTRAL, PUBLISHED, optimizer="adamw_fused", checkpointing=True, **QLORA)
    assert 14.1e9 < ours["total"] < 20.7e9
    inputs = PUBLISHED.tokens * MISTRAL.layers * MISTRAL.hidden * 2
    whole_logits = PUBLISHED.tokens * MISTRAL.vocabulary * (2 + 4 * 4)  # bf16; as float32, shifted, softmax, gradient
    others = sum(ours[part] for part in ours if part not in ("activations", "logits", "fragmentation", "total"))
    assert (others + inputs + whole_logits) * peft.FRAGMENTATION == pytest.approx(20.7e9, rel=0.05)


@pytest.mark.parametrize(
    ("quantization", "double_quant", "low_gib", "high_gib"),
    [("nf4", True, 3.8, 3.9), ("nf4", False, 4.1, 4.2), ("int8", True, 6.9, 7.1), ("none", True, 13.4, 13.6)],
)
def test_the_base_of_mistral_7b_takes_its_known_size(
    quantization: str, double_quant: bool, low_gib: float, high_gib: float
) -> None:
    size = memory.weight_bytes(MISTRAL, quantization=quantization, double_quant=double_quant, dtype="bfloat16")
    assert low_gib < size / 2**30 < high_gib


def test_more_of_anything_never_needs_less() -> None:
    def total(batch: Batch, **changed: Any) -> int:
        settings = {**QLORA, "optimizer": "adamw_fused", "checkpointing": True, **changed}
        return peft.expected(MISTRAL, batch, **settings)["total"]

    one = Batch(rows=1, length=512)
    assert total(one) < total(Batch(rows=2, length=512)) < total(Batch(rows=2, length=1024))
    assert total(one) < total(one, rank=64)
    assert total(one) < total(one, checkpointing=False)
    assert total(one) < total(one, has_dropout=True)
    assert total(one, attention="flash_attention_2") < total(one, attention="sdpa")
    by_optimizer = [total(one, optimizer=name) for name in ("paged_adamw_8bit", "adamw_8bit", "adamw", "adamw_fused")]
    assert by_optimizer == sorted(by_optimizer)


def test_rows_of_new_tokens_cost_the_fast_engine_pefts_copies_only_where_its_check_is_the_largest_moment() -> None:
    plain = models()["llama-3-8b"]
    rows = replace(plain, row_parameters=2 * 3 * plain.hidden)
    setting = Setting(
        quantization="nf4", double_quant=True, dtype="bfloat16", rank=16, on_gpu=True, has_flash=True,
        longest_tokens=512, mean_tokens=512,
    )  # fmt: skip
    small, large = (
        [FastMemory(each, setting).parts(Shape(tokens=tokens, checkpointed=0)) for each in (plain, rows)]
        for tokens in (64, 16_384)
    )
    moving = ("activations", "in flight")
    assert sum(small[1][part] for part in moving) == 3 * plain.vocabulary * plain.hidden * 2
    assert [large[1][part] for part in moving] == [large[0][part] for part in moving]
    assert small[1]["adapters and gradients"] - small[0]["adapters and gradients"] == 12 * rows.row_parameters
