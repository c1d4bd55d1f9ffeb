"""gpt-oss as it is published, its experts in MXFP4: read into NF4 or 16 bit, trained, merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from jobs import assert_close, gradients, job_of
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny import copy_tree
from training.test_mixtures import dense, padded, passed
from transformers import AutoModelForCausalLM
from whole_runs import losses, train

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError
from loradock.model import added_error, load, prequantised, source, whole
from loradock.model.experts import layout
from loradock.model.experts.storage import NF4Experts
from loradock.model.stored import mxfp4
from loradock.training.objectives.supervised import balancing_of
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.run import run

EXPERTS = "lora.targets=[all-linear,experts]"
ONE_PASS = ("train.micro_batch=8", "train.packing=false", "train.checkpointing=false", "model.compute_dtype=float32")
RUN = ("train.max_steps=4", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2")
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small gpt-oss with experts in MXFP4 of random blocks and scales, and all else in bfloat16."""
    base = mixtures.make(tmp_path_factory.mktemp("mxfp4") / "gpt_oss", "gpt_oss")
    stored = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        if ".experts." in name and tensor.dim() == 3:
            experts, columns, rows = tensor.shape
            size = (experts, rows, columns // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*size, 16), generator=generator, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(120, 124, size, generator=generator, dtype=torch.uint8)
        else:
            tensors[name] = tensor.to(torch.bfloat16)
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config |= {"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    (base / "config.json").write_text(json.dumps(config))
    return base


def by_definition(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Number by number, float64 [experts, columns, rows]."""
    experts, rows, groups, _ = blocks.shape
    values = torch.empty(experts, groups * 32, rows, dtype=torch.float64)
    for expert, row, group in torch.cartesian_prod(*map(torch.arange, (experts, rows, groups))).tolist():
        scale = 2.0 ** (int(scales[expert, row, group]) - 127)
        for place, byte in enumerate(blocks[expert, row, group].tolist()):
            for half, number in enumerate((byte & 15, byte >> 4)):
                sign = -1 if number & 8 else 1
                values[expert, group * 32 + 2 * place + half, row] = sign * VALUES[number & 7] * scale
    return values


def test_experts_are_what_the_format_says_and_are_quantised_once_more(published: Path) -> None:
    tensors = load_file(published / "model.safetensors")
    configs = [ModelConfig(name=str(published), quantization=each) for each in ("none", "nf4")]
    unquantised, quantised = (
        load.load_whole(source.find(each), each, dtype=torch.bfloat16, device="cpu") for each in configs
    )
    for whole_matrices, matrices in zip(layout.matrices(unquantised), layout.matrices(quantised), strict=True):
        parts = (tensors[f"{matrices.name}{part}"] for part in (mxfp4.BLOCKS, mxfp4.SCALES))
        values = mxfp4.dense(*parts)
        assert torch.equal(whole_matrices.parameter, values)
        expected = NF4Experts.quantised(values, double_quant=True)
        assert isinstance(matrices.parameter, NF4Experts)
        assert torch.equal(matrices.parameter.packed, expected.packed)
    name = "model.layers.1.mlp.experts.down_proj"
    first = [tensors[f"{name}{part}"][:1, :3] for part in (mxfp4.BLOCKS, mxfp4.SCALES)]
    assert torch.equal(mxfp4.dense(*first).double(), by_definition(*first))
    base = source.find(configs[0])
    share = added_error.of(quantised, base)
    assert share is not None
    assert 0.05 < share < 0.15
    assert added_error.of(unquantised, base) is None


def test_loss_and_gradients_are_those_of_the_dequantised_weights_in_float64(
    published: Path, rows: Path, tmp_path: Path
) -> None:
    job = job_of(tmp_path, EXPERTS, *ONE_PASS, model=published, data=rows)
    loss, computed = passed(job)
    job.model.save_pretrained(tmp_path / "adapter")
    weights = dense(job.model.unload())
    config = prequantised.plain(source.find(ModelConfig(name=str(published))).config)
    plain = AutoModelForCausalLM.from_config(config, experts_implementation="eager").double()
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(weights[name])
    adapter = str(tmp_path / "adapter")
    twin = PeftModel.from_pretrained(plain, adapter, is_trainable=True, autocast_adapter_dtype=False).double()
    inputs = padded(job)
    out = twin(**inputs, output_router_logits=True) if balancing_of(twin) else twin(**inputs)
    out.loss.backward()
    assert loss == pytest.approx(out.loss.item(), rel=1e-5)
    assert any(".experts." in name for name in computed)
    assert_close(computed, {name: gradient.float() for name, gradient in gradients(twin).items()})


@pytest.mark.thin(4)
@pytest.mark.usefixtures("forked_proof")
@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_a_run_says_what_was_added_and_is_merged_onto_what_it_was_trained_on(
    quantization: str, published: Path, rows: Path, tmp_path: Path
) -> None:
    settings = (*RUN, EXPERTS, f"model.quantization={quantization}")
    result = train(tmp_path / "run", *settings, model=published, data=rows)
    assert losses(result)[-1] < losses(result)[0] - 0.2
    assert (result.record["coverage"]["added_error"] is not None) == (quantization == "nf4")
    card = (result.adapter / "README.md").read_text("utf-8")
    made: dict[str, Any] = {}
    exec(card[card.index("import torch") : card.index("adapter = ")], made)  # transformers takes no other setting
    assert type(made["base"]).__name__ == "GptOssForCausalLM"
    with prepared(tmp_path / "run", Asked()) as job:
        run(job, tmp_path / "merged", is_full=True)
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    names = load_file(tmp_path / "merged" / "model.safetensors").keys()
    assert "model.layers.0.mlp.experts.down_proj" in names
    assert not [name for name in names if name.endswith((mxfp4.BLOCKS, mxfp4.SCALES))]


def test_a_storage_that_takes_no_experts_leaves_them_dense_as_of_a_base_in_16_bit(published: Path) -> None:
    asked = ModelConfig(name=str(published), quantization="int8")
    model = load.load_whole(source.find(asked), asked, dtype=torch.float32, device="cpu")
    assert {matrices.parameter.dtype for matrices in layout.matrices(model)} == {torch.float32}


def test_blocks_without_their_scales_are_a_weight_that_is_missing(published: Path, tmp_path: Path) -> None:
    base = copy_tree(published, tmp_path / "spoilt")
    tensors = load_file(base / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.down_proj_scales"]
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="does not hold the whole model") as caught:
        whole.check(source.find(ModelConfig(name=str(base))))
    assert "model.layers.0.mlp.experts.down_proj is missing" in str(caught.value)
