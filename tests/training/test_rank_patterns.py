"""`lora.rank_pattern` and `lora.alpha_pattern`: by both engines, in the plan and in the export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import recorded
from jobs import job_of
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from whole_runs import losses, train

from loradock.catalog.engines import PREFERRED
from loradock.config.sections.model import LoraConfig as OurLora
from loradock.errors import ConfigError, ModelError
from loradock.model.adapters import trainable
from loradock.plan import obstacles
from loradock.plan.memory.widths import widths
from loradock.training.run import Result

pytestmark = pytest.mark.thin(1)

RANKS, ALPHAS = {"q_proj": 8, r"layers\.1\.mlp\.down_proj": 2}, {"v_proj": 64, "layers.0.self_attn.o_proj": 3}
PATTERNS = (f"lora.rank_pattern={json.dumps(RANKS)}", f"lora.alpha_pattern={json.dumps(ALPHAS)}")
RUN = ("train.max_steps=3", "train.global_batch=4", "lora.rank=4", "data.max_length=64", "train.workers=0", *PATTERNS)
WHOLE = "model.quantization=none"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> dict[str, Result]:
    place = tmp_path_factory.mktemp("runs")
    engines = ("fast", "peft")
    return {name: train(place / name, *RUN, WHOLE, f"engine={name}", model=llama, data=rows) for name in engines}


def test_the_engines_train_alike_with_them(runs: dict[str, Result]) -> None:
    assert losses(runs["fast"]) == pytest.approx(losses(runs["peft"]), rel=1e-5)
    fast, peft = (load_file(runs[name].adapter / "adapter_model.safetensors") for name in runs)
    assert all(torch.allclose(fast[name], peft[name], atol=1e-5) for name in fast)
    ranks = {name: tensor.shape[0] for name, tensor in fast.items() if "lora_A" in name}
    assert {rank for name, rank in ranks.items() if "q_proj" in name} == {8}
    assert [rank for name, rank in ranks.items() if "layers.1.mlp.down_proj" in name] == [2]
    assert {rank for name, rank in ranks.items() if "v_proj" in name} == {4}


def test_the_exported_settings_are_what_peft_writes_and_load_with_equal_logits(
    runs: dict[str, Result], tmp_path: Path, llama: Path
) -> None:
    base: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    theirs = LoraConfig(
        r=4, lora_alpha=32, rank_pattern=RANKS, alpha_pattern=ALPHAS, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(base, theirs)
    adapted.save_pretrained(str(tmp_path / "theirs"))
    written, expected = (
        json.loads((folder / "adapter_config.json").read_text("utf-8"))
        for folder in (runs["fast"].adapter, tmp_path / "theirs")
    )
    for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "lora_dropout", "peft_type"):
        assert written[key] == expected[key], key
    own = load_file(runs["fast"].adapter / "adapter_model.safetensors")
    assert {name: each.shape for name, each in own.items()} == {
        name: each.shape for name, each in load_file(tmp_path / "theirs" / "adapter_model.safetensors").items()
    }
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            parameter.data.copy_(own[name.replace(".default", "")])
    again: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(again, str(runs["fast"].adapter))
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, adapted(ids).logits)


def test_the_plan_counts_the_weights_that_there_are(tmp_path: Path, llama: Path, rows: Path) -> None:
    job = job_of(tmp_path, "lora.rank=4", *PATTERNS, model=llama, data=rows)
    assert job.plan.model.adapter_parameters(4) == sum(each.numel() for each in trainable(job.model))
    ranks = [each.shape[0] for name, each in job.model.named_parameters() if "lora_A" in name]
    assert widths(job.plan.model, rank=4).ranks == pytest.approx(sum(ranks) / job.plan.model.layers)


def test_a_layer_is_meant_by_pefts_rule() -> None:
    lora = OurLora(rank=4, rank_pattern=RANKS | {"model.layers.2.mlp.up_proj": 16})
    names = {
        "model.layers.0.self_attn.q_proj": 8,
        "model.layers.11.mlp.down_proj": 4,
        "model.layers.1.mlp.down_proj": 2,
    }
    names |= {"model.layers.2.mlp.up_proj": 16, "model.layers.0.self_attn.qq_proj": 4, "q_proj": 8}
    assert {name: lora.rank_of(name) for name in names} == names


def test_with_dropout_the_fast_engine_takes_one_rank_an_input() -> None:
    config = recorded.config(lora={"dropout": 0.1, "rank_pattern": {"q_proj": 8}})
    model = recorded.models()["mistral-7b"]
    ranked = [replace(each, own_rank=8 if "q_proj" in each.name else None) for each in model.linears]
    several = replace(model, linears=tuple(ranked))
    why = obstacles.first(PREFERRED.cannot, config, several, compute_dtype="bfloat16")
    assert why == "with dropout, adapters of one input have one rank, and lora.rank_pattern gives several"
    plain = recorded.config(lora={"rank_pattern": {"q_proj": 8}})
    assert obstacles.first(PREFERRED.cannot, plain, several, compute_dtype="bfloat16") is None
    assert obstacles.first(PREFERRED.cannot, config, model, compute_dtype="bfloat16") is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("lora.rank_pattern={k_porj: 8}", "lora.rank_pattern: 'k_porj' means no layer that has an adapter"),
        ("lora.alpha_pattern={lm_head: 8}", "lora.alpha_pattern: 'lm_head' means no layer that has an adapter"),
        ("lora.rank_pattern={q_proj: 9999}", "lora.rank_pattern: 'q_proj' has rank 9999, and its layers"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused_by_name(
    setting: str, words: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    with pytest.raises(ModelError) as refused:
        train(tmp_path / "run", *RUN[:-2], setting, model=llama, data=rows)
    assert words in str(refused.value)
    assert "--set" in str(refused.value)


def test_what_is_no_regular_expression_is_a_problem_of_the_configuration(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tmp_path / "run", *RUN[:-2], "lora.rank_pattern={'(q_proj': 8}", model=llama, data=rows)
    assert "lora.rank_pattern: '(q_proj' is not a regular expression" in str(refused.value)
