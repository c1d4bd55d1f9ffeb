"""Only whole bases: which files hold the weights is told once, and every tensor of the architecture is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import copy_tree, make_llama
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForSequenceClassification
from wrappers import make_wrapper

from loradock.config.schema import RunConfig
from loradock.config.sections.model import LoraConfig, ModelConfig
from loradock.errors import ModelError
from loradock.model import shape, source, whole

Tensors = dict[str, torch.Tensor]
HALVED = "model.layers.0.mlp.up_proj.weight"


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: each for name, each in tensors.items() if not any(part in name for part in parts)}


SPOILT: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no head": (without("lm_head"), "lm_head.weight is missing"),
    "no embeddings": (without("embed_tokens"), "model.embed_tokens.weight is missing"),
    "no norm": (without("model.norm"), "model.norm.weight is missing"),
    "no projection": (without("0.self_attn.q_proj"), "model.layers.0.self_attn.q_proj.weight is missing"),
    "no layer": (without("layers.1."), "model.layers.1.input_layernorm.weight is missing"),
    "half a matrix": (
        lambda tensors: {**tensors, HALVED: tensors[HALVED][:64].contiguous()},
        f"{HALVED} is [64, 64], and config.json asks for [128, 64]",
    ),
}


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


def spoilt(base: Path, directory: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """A copy of a base whose weights were changed."""
    copy_tree(base, directory)
    tensors = change(load_file(directory / "model.safetensors"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def opened(directory: Path) -> source.BaseModel:
    return source.find(ModelConfig(name=str(directory)))


@pytest.mark.parametrize("case", SPOILT)
def test_a_base_that_is_not_whole_is_refused_by_its_tensors(case: str, untied: Path, tmp_path: Path) -> None:
    change, words = SPOILT[case]
    with pytest.raises(ModelError) as refused:
        whole.check(opened(spoilt(untied, tmp_path / "model", change)))
    assert words in [problem.what for problem in refused.value.problems]
    assert refused.value.exit_code == 78


def test_a_classifier_is_no_base(tmp_path: Path, llama: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = LlamaConfig(**{**settings, "tie_word_embeddings": False})
    LlamaForSequenceClassification(config).save_pretrained(directory)
    with pytest.raises(ModelError, match="LlamaForSequenceClassification: it scores texts, and writes none"):
        whole.check(opened(directory))


def test_a_tied_head_is_not_missing_and_a_tensor_without_use_is_named(llama: Path, tmp_path: Path) -> None:
    assert whole.check(opened(llama)) == ()
    extra = spoilt(llama, tmp_path / "model", lambda tensors: {**tensors, "model.mtp.weight": torch.zeros(3)})
    assert whole.check(opened(extra)) == ("model.mtp.weight",)


def test_layers_that_the_config_does_not_count_are_refused_and_one_with_more_in_it_is_named(
    llama: Path, tmp_path: Path
) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    count = settings["num_hidden_layers"]
    assert count > 1
    settings |= {"num_hidden_layers": count - 1, "layer_types": None}
    (directory / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError) as refused:
        whole.check(opened(directory))
    assert f"more layers than its config.json says: model.layers.{count - 1} would be left out" in refused.value.what
    assert refused.value.exit_code == 78

    predicting = f"model.layers.{count - 1}.eh_proj.weight"
    added = spoilt(directory, tmp_path / "predicting", lambda tensors: {**tensors, predicting: torch.zeros(3)})
    assert predicting in whole.check(opened(added))


def test_a_hybrids_last_layer_is_one_though_its_mixer_is_another(tmp_path: Path) -> None:
    directory = make_wrapper(tmp_path / "model", "qwen3_5")
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    text = settings["text_config"]
    assert text["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]
    text |= {"num_hidden_layers": 3, "layer_types": text["layer_types"][:3]}
    (directory / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match=r"model\.language_model\.layers\.3 would be left out"):
        whole.check(opened(directory))


def test_pickled_weights_are_compared_too(untied: Path, tmp_path: Path) -> None:
    directory = copy_tree(untied, tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")
    assert whole.check(opened(directory)) == ()
    del tensors["lm_head.weight"]
    torch.save(tensors, directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"lm_head\.weight is missing"):
        whole.check(opened(directory))
    torch.save({"a": Path("x")}, directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle that torch does not read"):
        whole.check(opened(directory))


def index(directory: Path, weight_map: Any) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "other.safetensors"}, "both model.safetensors and an index of other files"),
        ({}, "names no file"),
        ({"a": "/etc/passwd"}, "names /etc/passwd, which is not a file in the same directory"),
        ({"a": "../model.safetensors"}, "names ../model.safetensors, which is not a file in the same directory"),
    ],
)
def test_an_index_that_leaves_open_what_is_loaded_is_refused(
    weight_map: dict[str, str], words: str, llama: Path, tmp_path: Path
) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    copy = (directory / "model.safetensors").read_bytes()
    (directory / "other.safetensors").write_bytes(copy)
    index(directory, weight_map)
    with pytest.raises(ModelError) as refused:
        opened(directory)
    assert any(words in problem.what for problem in refused.value.problems)


@pytest.mark.parametrize("there", [(), ("model-00001-of-00002.safetensors",)])
def test_a_whole_file_beside_an_index_whose_shards_are_gone_is_the_model(
    llama: Path, tmp_path: Path, there: tuple[str, ...]
) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    index(directory, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    for name in there:
        save_file({"a": torch.zeros(2)}, directory / name)
    base = opened(directory)
    assert base.weight_files == (directory / "model.safetensors",)
    assert whole.check(base) == ()
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"shard model-00002-of-00002\.safetensors is missing"):
        opened(directory)


def test_what_is_loaded_is_what_is_hashed(llama: Path, tmp_path: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    (directory / "consolidated.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    assert opened(directory).weight_files == (directory / "model.safetensors",)
    index(directory, {"a": "model.safetensors"})
    assert opened(directory).weight_files == (directory / "model.safetensors",)


def test_an_encoder_and_a_rank_beyond_every_matrix_are_refused(llama: Path, tmp_path: Path) -> None:
    directory = copy_tree(llama, tmp_path / "bert")
    small: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertLMHeadModel(BertConfig(vocab_size=1024, is_decoder=True, **small)).save_pretrained(directory)
    assert opened(directory).config.is_decoder
    BertLMHeadModel(BertConfig(vocab_size=1024, **small)).save_pretrained(directory)
    with pytest.raises(ModelError, match="is an encoder"):
        opened(directory)
    with pytest.raises(ModelError, match=r"lora\.rank is 16384, .* more than 64 rows or columns"):
        shape.inspect(opened(llama), RunConfig(lora=LoraConfig(rank=16_384)))
