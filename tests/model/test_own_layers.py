"""Layers that are not plain linear ones, or that a model does not call: trained where that is right, else refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrids import built
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from whole_runs import losses, train

from loradock.errors import ModelError
from loradock.model import recurrence
from loradock.training.objectives.supervised import has_balanced_routers

COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1024}
HYBRID = {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
REACHED = ["down_proj", "gate_proj", "in_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
RUN = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "train.learning_rate=1e-2", "data.max_length=64")


def made(directory: Path, family: str, **settings: Any) -> Path:
    """A tiny model with the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**COMMON, **tokens, **settings}))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.thin(4)
def test_linear_layers_of_falcons_own_class_are_quantised_and_trained(tmp_path: Path, rows: Path) -> None:
    falcon = made(tmp_path / "falcon", "falcon", bias=False)
    result = train(tmp_path / "run", *RUN, model=falcon, data=rows)
    assert result.record["coverage"]["missed_weights"] == 0
    assert losses(result)[-1] < losses(result)[0]


@pytest.mark.thin(4)
def test_a_mamba_that_takes_weights_itself_is_refused_with_settings_that_train_it(tmp_path: Path, rows: Path) -> None:
    mamba = made(tmp_path / "mamba", "mamba", state_size=8, expand=2, time_step_rank=4)
    with pytest.raises(ModelError, match="does not call its layers dt_proj, out_proj, x_proj") as refused:
        train(tmp_path / "refused", *RUN, model=mamba, data=rows)
    remedy = [each for each in shlex.split(refused.value.hint or "") if each != "--set"]
    assert remedy == ["model.quantization=none", "lora.targets=[in_proj]"]
    result = train(tmp_path / "run", *RUN, *remedy, model=mamba, data=rows)
    assert losses(result)[-1] < losses(result)[0]


@pytest.mark.thin(4)
def test_a_mamba_mixer_beside_attention_gets_adapters_where_they_are_used(tmp_path: Path, rows: Path) -> None:
    """Its fused kernel takes out_proj's weights itself, past an adapter; PEFT refuses to train one."""
    hybrid = made(tmp_path / "hybrid", "falcon_h1", intermediate_size=128, num_key_value_heads=2, **HYBRID)
    result = train(tmp_path / "run", *RUN, model=hybrid, data=rows)
    targets = json.loads((result.adapter / "adapter_config.json").read_text())["target_modules"]
    assert {name.rpartition(".")[2] for name in targets} == set(REACHED)
    assert losses(result)[-1] < losses(result)[0]
    with pytest.raises(ModelError, match="Module 'out_proj' is incompatible") as refused:
        train(tmp_path / "refused", *RUN, "lora.targets=[in_proj,out_proj]", model=hybrid, data=rows)
    assert refused.value.hint == f"--set lora.targets=[{','.join(REACHED)}]"
    train(tmp_path / "again", *RUN, f"lora.targets=[{','.join(REACHED)}]", model=hybrid, data=rows)


@pytest.mark.thin(4)
def test_a_mamba_is_refused_where_its_fused_kernel_would_read_4_bit_numbers(
    tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid = made(tmp_path / "hybrid", "falcon_h1", intermediate_size=128, num_key_value_heads=2, **HYBRID)
    monkeypatch.setattr(recurrence, "find_spec", lambda name: name)
    with pytest.raises(ModelError, match="does not call its layers out_proj but takes their weights") as refused:
        train(tmp_path / "refused", *RUN, model=hybrid, data=rows)
    assert refused.value.hint == f"--set model.quantization=none --set lora.targets=[{','.join(REACHED)}]"


@pytest.mark.thin(4)
def test_routers_are_asked_for_their_loads_where_there_are_any() -> None:
    """Granite 4 and Qwen3-Next name a weight of that loss in config.json, with experts or without."""
    dense = built("qwen3_next")
    assert dense.config.router_aux_loss_coef
    assert not has_balanced_routers(dense)
    assert has_balanced_routers(built("qwen3_next", mlp_only_layers=[]))
