"""A base that sees or hears: its language model alone is built, read, adapted and named as on the published class."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig
from wrappers import KINDS, make_wrapper

from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError
from loradock.model import adapters, architecture, names, published, shape, source, whole
from loradock.model.load import load_whole

pytestmark = pytest.mark.thin(2)

IDS = torch.arange(3, 43).view(2, 20)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, source.BaseModel]:
    place = tmp_path_factory.mktemp("wrappers")
    return {kind: found(make_wrapper(place / kind, kind)) for kind in KINDS}


def found(directory: Path) -> source.BaseModel:
    return source.find(ModelConfig(name=str(directory)))


def language_model(base: source.BaseModel) -> Any:
    return load_whole(base, ModelConfig(name=base.name, quantization="none"), dtype=torch.float32, device="cpu")


def config_of(base: source.BaseModel, *settings: str) -> RunConfig:
    return load(None, overrides=[f"model.name={base.directory}", *settings], needs_inputs=False).config


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_model_alone_answers_as_the_published_class_with_all_its_parts(
    kind: str, bases: dict[str, source.BaseModel]
) -> None:
    base = bases[kind]
    published_class = getattr(transformers, KINDS[kind][0])
    every = published_class.from_pretrained(base.directory, dtype=torch.float32).eval()
    own = language_model(base).eval()
    with torch.no_grad():
        assert torch.equal(own(input_ids=IDS).logits, every(input_ids=IDS).logits)
    lost = {name for name, _ in every.named_parameters()} - {name for name, _ in own.named_parameters()}
    assert lost
    assert not [name for name in lost if not re.search("vision|visual|projector|audio", name)]
    assert sum(part.parameters for part in architecture.left_out(own)) == sum(
        every.get_parameter(name).numel() for name in lost
    )


@pytest.mark.parametrize("kind", KINDS)
def test_all_linear_means_each_layer_of_the_language_model_and_none_of_a_tower_on_the_published_class(
    kind: str, bases: dict[str, source.BaseModel]
) -> None:
    base = bases[kind]
    facts = shape.inspect(base, config_of(base))
    adapted = adapters.attach(language_model(base), config_of(base), base=base)
    pattern = adapted.peft_config["default"].target_modules
    with torch.device("meta"):
        every = architecture.whole(base.config)
    meant = {name for name, _ in every.named_modules() if re.fullmatch(pattern, name)}
    assert meant == set(facts.targets)
    assert len(meant) >= 14
    assert not whole.check(base)


def test_targets_by_their_ends_and_in_full_are_those_of_the_language_model(bases: dict[str, source.BaseModel]) -> None:
    base = bases["gemma3"]
    full = "model.language_model.layers.1.mlp.up_proj"
    config = config_of(base, f"lora.targets=[q_proj,{full}]")
    adapted = adapters.attach(language_model(base), config, base=base)
    keys = adapters.state(adapted).keys()
    assert {key.split(".")[-3] for key in keys} == {"q_proj", "up_proj"}
    assert len(keys) == 2 * 3
    assert set(adapted.peft_config["default"].target_modules) == {*shape.inspect(base, config).targets}


@pytest.mark.parametrize("target", ["vision_tower.encoder.layers.0.self_attn.q_proj", "model.multi_modal_projector"])
def test_a_target_in_a_part_that_is_left_out_is_told_so(bases: dict[str, source.BaseModel], target: str) -> None:
    base = bases["gemma3"]
    with pytest.raises(ModelError, match="which is left out: rows are text"):
        shape.inspect(base, config_of(base, f"lora.targets=[q_proj,{target}]"))


def keys_of(base: source.BaseModel) -> list[str]:
    return list(adapters.state(adapters.attach(language_model(base), config_of(base), base=base)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_without_its_prefix_is_no_name_of_the_published_class(
    kind: str, bases: dict[str, source.BaseModel]
) -> None:
    base = bases[kind]
    keys = [key.replace("model.language_model.", "model.", 1) for key in keys_of(base)]
    part = architecture.decoder_name(language_model(base))
    with pytest.raises(ModelError, match=r"names differ.* finds no module"):
        published.check(base, LoraConfig(target_modules=rf"{part}\..*_proj"), keys)


def test_a_target_in_a_tower_is_found_where_the_adapter_is_proven(bases: dict[str, source.BaseModel]) -> None:
    base = bases["gemma3"]
    settings = LoraConfig(target_modules=["q_proj"])  # as the towers' layers are called, too
    with pytest.raises(ModelError, match=r"is missing"):
        published.check(base, settings, [key for key in keys_of(base) if "q_proj" in key])
    tower = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj"
    keys = [f"{tower}.lora_{side}.weight" for side in "AB"]
    settings = LoraConfig(target_modules=r".*vision_tower.*layers\.0\.self_attn\.q_proj")
    with pytest.raises(ModelError, match="lies outside the language model"):
        published.check(base, settings, keys)


def test_files_that_name_weights_otherwise_are_read_by_the_names_of_the_model(
    bases: dict[str, source.BaseModel],
) -> None:
    base = bases["mistral3"]
    keys = list(whole.shapes(base.weight_files))
    own = names.in_model(source.on_meta(base), keys)
    assert own["language_model.model.layers.0.mlp.up_proj.weight"] == "model.language_model.layers.0.mlp.up_proj.weight"
    assert sorted(set(keys) - own.keys()) == sorted(key for key in keys if not key.startswith("language_model."))


def test_a_model_without_a_part_of_its_decoder_is_refused(bases: dict[str, source.BaseModel], tmp_path: Path) -> None:
    make_wrapper(tmp_path / "base", "gemma3")
    file = tmp_path / "base" / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["num_hidden_layers"] = 3
    config["text_config"]["layer_types"] = ["full_attention"] * 3
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"language_model.layers.2.*is missing"):
        whole.check(found(tmp_path / "base"))


def test_a_part_that_was_left_out_says_so_when_it_is_used(bases: dict[str, source.BaseModel]) -> None:
    model = language_model(bases["gemma3"])
    with pytest.raises(ModelError, match="without the parts for images"):
        model(input_ids=IDS, pixel_values=torch.zeros(1, 3, 28, 28))


def test_an_attribute_error_of_a_library_is_told_as_a_fault_of_ours(
    bases: dict[str, source.BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise AttributeError("'Config' object has no attribute 'vocab_size'")

    monkeypatch.setattr(architecture, "build", broken)
    with pytest.raises(ModelError) as error:
        source.on_meta(bases["gemma3"])
    assert "this is a fault of loradock: please report it" in str(error.value)
