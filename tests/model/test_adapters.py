"""Every kind of adapter trains and comes out as something plain peft loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of
from peft import PeftModel, get_peft_model_state_dict
from tiny import make_llama
from transformers import AutoModelForCausalLM
from whole_runs import losses, train

from loradock.errors import NoCheckpoint
from loradock.files import atomic_io
from loradock.model import adapters, export, source
from loradock.training.checkpoint import state

pytestmark = pytest.mark.thin(2)

RUN = ("train.max_steps=8", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2")


def plain_logits(base: Path, adapter: Path) -> torch.Tensor:
    """Logits of base and adapter as anybody would load them."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad():
        return model(input_ids=torch.arange(5, 25)[None]).logits


@pytest.mark.thin(6)
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


@pytest.mark.thin(6)
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
    text = (result.adapter / "adapter_config.json").read_text(encoding="utf-8")
    assert '"lora_alpha": 32,' in text
    assert json.loads(text)["target_modules"] == sorted(json.loads(text)["target_modules"])


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


@pytest.mark.thin(6)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("lora.dora=true",),
        ("lora.rslora=true", "lora.targets=[q_proj,v_proj]"),
        ("lora.modules_to_save=[lm_head]",),
        ("lora.modules_to_save=[embed_tokens]",),
        ("lora.modules_to_save=[lm_head,norm]", "model.quantization=none"),
    ],
    ids=" ".join,
)
def test_what_is_saved_and_exported_is_what_peft_writes_and_is_taken_up_again(
    settings: tuple[str, ...], tied: bool, tmp_path: Path, rows: Path
) -> None:
    """The same names and the same bytes, though no module is asked for its state."""
    llama = make_llama(tmp_path / "llama", tie_word_embeddings=tied)
    job = job_of(tmp_path, *settings, model=llama, data=rows)
    model, base = job.model, source.find(job.config.model)
    model.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
    wanted = (tmp_path / "peft" / export.WEIGHTS).read_bytes()
    own = adapters.state(model)
    named = get_peft_model_state_dict(model, save_embedding_layers=False)
    assert list(own) == list(named)
    assert all(torch.equal(tensor, named[name]) and not tensor.requires_grad for name, tensor in own.items())
    assert saved(model, tmp_path) == wanted
    out = export.export(model, tmp_path / "out", tokenizer=job.tokenizer, template=None, base=base, initial=None)
    assert (out / export.WEIGHTS).read_bytes() == wanted
    with torch.no_grad():
        for parameter in adapters.trainable(model):
            parameter.zero_()
    adapters.restore(model, wanted)
    assert saved(model, tmp_path) == wanted


def saved(model: Any, folder: Path) -> bytes:
    """The weights in a checkpoint of the model."""
    file = folder / "saved"
    file.unlink(missing_ok=True)
    atomic_io.write(file, state.as_files(state.of_run(model, {}, random_states=[]))[export.WEIGHTS])
    return file.read_bytes()


@pytest.mark.parametrize("other", ["lora.rank=8", "lora.targets=[q_proj]", "lora.dora=true"])
def test_a_checkpoint_of_another_adapter_is_refused_by_the_tensor_that_differs(
    other: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    model = job_of(tmp_path, model=llama, data=rows).model
    before = {name: tensor.clone() for name, tensor in adapters.state(model).items()}
    wrong = saved(job_of(tmp_path, other, model=llama, data=rows).model, tmp_path)
    with pytest.raises(
        NoCheckpoint, match=r"adapter differs: \d+ tensors differ in name or shape, first .*proj\.lora_"
    ):
        adapters.restore(model, wrong)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapters.state(model).items())
