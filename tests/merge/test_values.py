"""A merged model is base and adapter: the weights of training to the bit, and PEFT's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from families import FAMILIES, make_model
from merge.made import divergence, log_probabilities, make_adapter, merged, write_lineage
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tiny import make_llama
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError
from loradock.model import load, source
from loradock.use.merge import experts, proof
from loradock.use.merge.proof import kl

pytestmark = [
    pytest.mark.thin(1),
    pytest.mark.usefixtures("forked_proof"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out is set to False:UserWarning"),
]
IN_FLOAT32, IN_BFLOAT16 = 1e-8, 5e-5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"))


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("hidden", [64, 80])
@pytest.mark.parametrize("double_quant", [True, False])
def test_dequantised_weights_are_those_of_the_loaded_layers_to_the_bit(
    tmp_path: Path, hidden: int, dtype: str, double_quant: bool
) -> None:
    from bitsandbytes import functional
    from bitsandbytes.nn import Linear4bit

    base = make_llama(tmp_path / "base", hidden_size=hidden, head_dim=20)
    adapter = make_adapter(tmp_path / "adapter", base=base, dtype=dtype, target_modules=["o_proj"])
    file = adapter / "training.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"double_quant": double_quant}))
    merged(adapter, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    asked = ModelConfig.model_validate({"name": str(base), "quantization": "nf4", "double_quant": double_quant})
    loaded = load.load_whole(source.find(asked), asked, dtype=getattr(torch, dtype), device="cpu")
    layers: dict[str, Any] = {name: each for name, each in loaded.named_modules() if isinstance(each, Linear4bit)}
    assert len(layers) == 14
    for name, layer in layers.items():
        wanted = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        if not name.endswith("o_proj"):
            assert torch.equal(found[f"{name}.weight"], wanted.float()), name
    whole = load_file(base / "model.safetensors")
    others = whole.keys() - {f"{name}.weight" for name in layers}
    assert others
    assert all(torch.equal(found[name], whole[name]) for name in others)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"v_proj": 2, "layers.1.self_attn.q_proj": 7}, "alpha_pattern": {"q_proj": 3}},
    "rslora-patterns": {"use_rslora": True, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}},
    "dora": {"use_dora": True},
    "one-layer": {"layers_to_transform": [1]},
    "head": {"modules_to_save": ["lm_head"]},
    "embedding": {"modules_to_save": ["embed_tokens"]},
    "norm": {"modules_to_save": ["input_layernorm"]},
    "both-tied": {"modules_to_save": ["lm_head"], "ensure_weight_tying": True},
    "lora-on-head": {"target_modules": ["q_proj", "lm_head"]},
    "lora-on-embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}
UNTIED = ("head", "embedding", "lora-on-head", "lora-on-embedding")


@pytest.mark.thin(8)
@pytest.mark.parametrize("quantization", ["nf4", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_answers_as_base_and_adapter_do(
    tmp_path: Path, base: Path, kind: str, quantization: str
) -> None:
    adapter = make_adapter(tmp_path / "adapter", base=base, quantization=quantization, **KINDS[kind])
    found = merged(adapter, tmp_path / "out")
    assert divergence(adapter, tmp_path / "out", quantization=quantization) <= IN_FLOAT32
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is (kind not in UNTIED)
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["untied"] is (kind in UNTIED)
    assert record["onto"] == ("trained" if quantization == "nf4" else "original")
    assert found.files == record["files"]
    merged(adapter, tmp_path / "half", dtype="bf16")
    assert divergence(adapter, tmp_path / "half", quantization=quantization) <= IN_BFLOAT16
    kinds = {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()}
    assert kinds == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.thin(8)
# PEFT looks for experts in every Qwen3-Next, and this one has none.
@pytest.mark.filterwarnings(
    "ignore:target_parameters=:RuntimeWarning", "ignore:The following .*_pattern keys:RuntimeWarning"
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_merged_onto_the_weights_of_training(tmp_path: Path, family: str) -> None:
    base = make_model(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "adapter", base=base, target_modules="all-linear")
    merged(adapter, tmp_path / "out")
    assert divergence(adapter, tmp_path / "out") <= IN_FLOAT32


def test_layers_that_hold_transposed_weights_are_merged(tmp_path: Path) -> None:
    config = AutoConfig.for_model("gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=64, vocab_size=900)
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tokenizer(tmp_path / "base")
    for name, quantization in (("q", "nf4"), ("w", "none")):
        adapter = make_adapter(
            tmp_path / name, base=tmp_path / "base", target_modules=["c_attn"], quantization=quantization
        )
        merged(adapter, tmp_path / f"out-{name}")
        assert divergence(adapter, tmp_path / f"out-{name}", quantization=quantization) <= IN_FLOAT32


def test_onto_the_original_weights_is_another_model_than_training_had(tmp_path: Path, base: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", base=base)
    merged(adapter, tmp_path / "out", onto="original")
    assert divergence(adapter, tmp_path / "out", quantization="none") <= IN_FLOAT32
    assert divergence(adapter, tmp_path / "out", quantization="nf4") > 1e-5


def test_one_shard_and_many_hold_the_same_tensors(tmp_path: Path, base: Path) -> None:
    many = tmp_path / "many"
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(many, max_shard_size="100KB")
    tokenizer(many)
    assert len(list(many.glob("*.safetensors"))) > 3
    for name, model in (("one", base), ("several", many)):
        adapter = make_adapter(tmp_path / f"adapter-{name}", base=model, modules_to_save=["lm_head"])
        merged(adapter, tmp_path / name)
    assert {file.name for file in (tmp_path / "several").glob("*.safetensors")} == {
        file.name for file in many.glob("*.safetensors")
    }
    first = load_file(tmp_path / "one" / "model.safetensors")
    second: dict[str, torch.Tensor] = {}
    for file in (tmp_path / "several").glob("*.safetensors"):
        second |= load_file(file)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == second.keys()
    assert divergence(tmp_path / "adapter-several", tmp_path / "several") <= IN_FLOAT32


def test_tokens_that_were_added_enlarge_the_vocabulary(tmp_path: Path, base: Path) -> None:
    words = AutoTokenizer.from_pretrained(base)
    words.add_tokens(["<|more|>", "<|other|>"])
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(len(words), mean_resizing=False)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))
    torch.manual_seed(4)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape) * 0.05
    model.get_input_embeddings().weight.data[-2:] = torch.randn(2, 64)
    adapted.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=True)
    words.save_pretrained(tmp_path / "adapter")
    write_lineage(tmp_path / "adapter", base=base, quantization="none")
    merged(tmp_path / "adapter", tmp_path / "out", is_full=True)
    found: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert found.config.vocab_size == len(words) == len(AutoTokenizer.from_pretrained(tmp_path / "out"))
    wanted = log_probabilities(adapted, len(words))
    assert float(kl(wanted, log_probabilities(found, len(words))).mean()) <= IN_FLOAT32


@pytest.mark.thin(4)
@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss", "llama4_text"])
def test_experts_are_those_of_training_with_what_their_adapter_adds(tmp_path: Path, kind: str) -> None:
    """Of Qwen each expert is three tensors in the files, of gpt-oss all are one, which is transposed."""
    base = mixtures.make(tmp_path / "base", kind, hidden_size=80, head_dim=20)
    on_experts = ["experts.gate_up_proj", "experts.down_proj"]
    adapter = make_adapter(tmp_path / "adapter", base=base, target_modules=["q_proj"], target_parameters=on_experts)
    merged(adapter, tmp_path / "out")
    assert divergence(adapter, tmp_path / "out") <= IN_FLOAT32
    write_lineage(adapter, base=base, quantization="none")
    merged(adapter, tmp_path / "whole")
    assert divergence(adapter, tmp_path / "whole", quantization="none") <= IN_FLOAT32
    assert divergence(adapter, tmp_path / "whole") > IN_BFLOAT16


def test_a_mixture_that_rounding_moves_far_is_proven_beside_pefts_own_merge_rounded_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter on the experts that is put on by a twentieth too much is found there."""
    monkeypatch.setattr(proof, "MOST_KL", 1e-9)
    base = mixtures.make(tmp_path / "base", "mixtral")
    on_experts = ["experts.gate_up_proj", "experts.down_proj"]
    adapter = make_adapter(tmp_path / "adapter", base=base, target_modules=["q_proj"], target_parameters=on_experts)
    merged(adapter, tmp_path / "out", dtype="bf16", is_full=True)
    verified = json.loads((tmp_path / "out" / "merge.json").read_text())["verified"]
    assert verified["kl_rounded"] < 1e-9 < verified["kl_mean"]
    right = experts.change
    monkeypatch.setattr(experts, "change", lambda *given: right(*given) * 1.05)
    with pytest.raises(ModelError, match="the merged model is not base and adapter"):
        merged(adapter, tmp_path / "wrong", dtype="bf16", is_full=True)


def test_a_dense_model_that_rounding_moves_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MOST_KL", 1e-12)
    adapter = make_adapter(tmp_path / "adapter", base=make_llama(tmp_path / "base"))
    with pytest.raises(ModelError, match="the merged model is not base and adapter"):
        merged(adapter, tmp_path / "out", dtype="bf16", is_full=True)


def test_experts_in_nf4_are_merged_where_attention_alone_has_an_adapter(tmp_path: Path) -> None:
    adapter = make_adapter(
        tmp_path / "adapter", base=mixtures.make(tmp_path / "base", "mixtral"), target_modules=["q_proj", "o_proj"]
    )
    merged(adapter, tmp_path / "out")
    assert divergence(adapter, tmp_path / "out") <= IN_FLOAT32
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["tensors"]["dequantised"] == 2 * 4 * 3 + 2 * 2


def test_ends_of_answers_are_kept_and_those_of_training_come_after_them(tmp_path: Path, base: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", base=base)
    own = make_llama(tmp_path / "base")
    (own / "generation_config.json").write_text('{"eos_token_id": [9, 7], "temperature": 0.7, "do_sample": true}')
    write_lineage(adapter, base=own)
    merged(adapter, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert found["eos_token_id"] == [9, 7, 1]
    assert found["temperature"] == 0.7


def tokenizer(folder: Path) -> None:
    """The demo's tokenizer beside a model."""
    from tiny import BASE

    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)
