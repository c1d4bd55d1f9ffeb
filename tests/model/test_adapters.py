"""Every kind of adapter trains and comes out as something plain peft loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny import losses, train
from transformers import AutoModelForCausalLM

RUN = ("train.max_steps=8", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2")


def plain_logits(base: Path, adapter: Path) -> torch.Tensor:
    """Logits of base and adapter as anybody would load them."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad():
        return model(input_ids=torch.arange(5, 25)[None]).logits


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_initialisations_that_change_the_base_come_out_as_plain_lora(
    init: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """Untrained, the exported adapter changes nothing; trained, it changes the base as anybody would load it."""
    settings = (*RUN, f"lora.init={init}", "model.quantization=none", "data.validation=8")
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    start = train(tmp_path / "start", *settings, "train.learning_rate=1e-12", model=llama, data=rows)
    with torch.no_grad():
        untouched = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)(
            input_ids=torch.arange(5, 25)[None]
        ).logits
    torch.testing.assert_close(plain_logits(llama, start.adapter), untouched, rtol=1e-3, atol=1e-4)
    settings_written = json.loads((result.adapter / "adapter_config.json").read_text(encoding="utf-8"))
    assert (settings_written["init_lora_weights"], settings_written["r"]) == (True, 8)
    assert losses(result)[-1] < losses(result)[0]
    assert not torch.allclose(plain_logits(llama, result.adapter), untouched, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        ("lora.rslora=true",),
        ("lora.dora=true",),
        ("lora.init=gaussian",),
        ("lora.targets=[q_proj,v_proj]",),
        ("lora.modules_to_save=[lm_head]",),
        ("model.quantization=none",),
        ("model.double_quant=false",),
        ("train.neftune_alpha=5",),
        ("train.checkpointing=true",),
        ("train.optimizer=adamw", "train.schedule=linear"),
        ("train.schedule=constant", "train.warmup=2"),
        ("model.attention=eager", "train.packing=true"),
    ],
    ids=" ".join,
)
def test_an_option_trains_and_its_adapter_loads(
    settings: tuple[str, ...], tmp_path: Path, llama: Path, rows: Path
) -> None:
    result = train(tmp_path / "run", *RUN, *settings, model=llama, data=rows)
    assert losses(result)[-1] < losses(result)[0]
    assert torch.isfinite(plain_logits(llama, result.adapter)).all()


def test_eight_bit_says_what_it_covers(tmp_path: Path, llama: Path, rows: Path) -> None:
    result = train(tmp_path / "run", *RUN, "model.quantization=int8", model=llama, data=rows)
    coverage, model = result.record["coverage"], result.record["plan"]["model"]
    assert coverage["quantised_weights"] == model["parameters"] - (model["vocabulary"] + 5) * 64
    assert losses(result)[-1] < losses(result)[0]


def test_a_module_that_is_saved_whole_really_learns(tmp_path: Path, llama: Path, rows: Path) -> None:
    from safetensors.torch import load_file

    result = train(tmp_path / "run", *RUN, "lora.modules_to_save=[lm_head]", model=llama, data=rows)
    saved = load_file(result.adapter / "adapter_model.safetensors")
    heads = [tensor for name, tensor in saved.items() if "lm_head" in name or "embed_tokens" in name]
    before = load_file(llama / "model.safetensors")["model.embed_tokens.weight"].float()
    assert heads
    assert all(not torch.equal(head.float(), before) for head in heads)
