"""Bad models: each is refused before its weights are read, with the file, what is wrong and a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.report.content import plan
from tiny import copy_tree

from loradock.analysis.report import console
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.config.sections.model import LoraConfig, ModelConfig
from loradock.errors import HubError, InputMissing, LoradockError, ModelError
from loradock.machine import hub_access
from loradock.model import lengths, shape, source, tokenizer
from loradock.model.description import describe
from loradock.training.observers import model_card


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for key, value in changes.items():
        content.pop(key, None)
        if value is not None:
            content[key] = value
    file.write_text(json.dumps(content), encoding="utf-8")


def cut(file: Path, keep_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:keep_bytes])


Spoil = Callable[[Path], object]
CASES: dict[str, tuple[Spoil, type[LoradockError], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), ModelError, "config.json is missing"),
    "config is not JSON": (lambda d: (d / "config.json").write_text("{"), ModelError, "config.json:1"),
    "config is a list": (lambda d: (d / "config.json").write_text("[]"), ModelError, "config.json"),
    "no model type": (lambda d: edit(d / "config.json", model_type=None), ModelError, "config.json"),
    "unknown model type": (lambda d: edit(d / "config.json", model_type="llamma"), ModelError, "llamma"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), ModelError, "no weights"),
    "weights cut short": (lambda d: cut(d / "model.safetensors", 9000), ModelError, "is truncated: 9000 of"),
    "weights are empty": (lambda d: cut(d / "model.safetensors", 0), ModelError, "truncated"),
    "weights are a web page": (
        lambda d: (d / "model.safetensors").write_text("<html>not found</html>"),
        ModelError,
        "not a safetensors file",
    ),
    "a shard is missing": (
        lambda d: (
            (d / "model.safetensors")
            .rename(d / "model.safetensors.index.json")
            .write_text('{"weight_map": {"a": "model-00001.safetensors"}}')
        ),
        ModelError,
        "shard model-00001.safetensors is missing",
    ),
    "the index is not an index": (
        lambda d: (d / "model.safetensors.index.json").write_text("[]"),
        ModelError,
        "not a weight index",
    ),
    "no tokenizer": (
        lambda d: [(d / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
        ModelError,
        "no tokenizer",
    ),
    "the tokenizer is broken": (lambda d: (d / "tokenizer.json").write_text("{}"), ModelError, "tokenizer"),
    "no EOS": (lambda d: edit(d / "tokenizer_config.json", eos_token=None), ModelError, "end-of-sequence"),
    "fewer embeddings than tokens": (
        lambda d: edit(d / "config.json", vocab_size=100),
        ModelError,
        "ids, the model 100 embeddings",
    ),
    "an encoder": (
        lambda d: (d / "config.json").write_text('{"model_type": "t5", "d_model": 64}'),
        ModelError,
        "is an encoder-decoder (t5)",
    ),
    "already quantised": (
        lambda d: edit(d / "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        ModelError,
        "already quantised",
    ),
    "code that is not trusted": (
        lambda d: edit(d / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
        ModelError,
        "trust_remote_code",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_spoilt_model_directory_is_refused(case: str, tmp_path: Path, llama: Path) -> None:
    spoil, error, words = CASES[case]
    directory = copy_tree(llama, tmp_path / "model")
    spoil(directory)
    with pytest.raises(error) as caught:
        shape.inspect(opened(directory), RunConfig())
    assert words in str(caught.value)
    assert "hint: " in str(caught.value)


def opened(directory: Path) -> source.BaseModel:
    base = source.find(ModelConfig(name=str(directory)))
    tokenizer.open_tokenizer(base)
    return base


def test_everything_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError) as caught:
        source.find(ModelConfig(name=str(tmp_path / "empty")))
    assert len(caught.value.problems) == 3


def test_a_directory_that_does_not_exist_is_named_with_its_neighbour(tmp_path: Path, llama: Path) -> None:
    copy_tree(llama, tmp_path / "mistral-7b")
    with pytest.raises(InputMissing, match=r"did you mean .*mistral-7b"):
        source.find(ModelConfig(name=str(tmp_path / "mistral-7")))


def test_a_file_is_no_model(llama: Path) -> None:
    with pytest.raises(InputMissing, match=f"is a file\\nhint: give the directory that holds it: {llama}"):
        source.find(ModelConfig(name=str(llama / "model.safetensors")))


def test_a_file_of_rows_is_no_model_and_neither_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(InputMissing, match=r"is a file\nhint: give the directory of a model: config.json"):
        source.find(ModelConfig(name=str(tmp_path / "rows.jsonl")))


@pytest.mark.parametrize("kind", ["adapter", "run", "gguf directory", "gguf file"])
def test_what_is_no_base_is_told_what_it_is_and_how_to_go_on(kind: str, tmp_path: Path, llama: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    if kind == "adapter":
        (given / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(llama)}))
        (given / "adapter_model.safetensors").touch()
        words, hint = "is an adapter, not a base model", f"--model {llama} --set lora.adapter={given} continues it"
    elif kind == "run":
        (given / "run.json").write_text("{}")
        words, hint = (
            "is the directory of a run, not a base model",
            f"--model BASE --set lora.adapter={given} continues it",
        )
    else:
        (given / "model.gguf").write_bytes(b"GGUF")
        words, hint = (
            "GGUF, the format of llama.cpp, not a base model",
            "--model DIR of the model that it was converted",
        )
        given = given / "model.gguf" if kind == "gguf file" else given
    for look in (source.find, describe):
        with pytest.raises(ModelError, match=words) as refused:
            look(ModelConfig(name=str(given)))
        assert str(refused.value.hint).startswith(hint)
        assert "copy the whole directory again" not in str(refused.value)


def test_a_model_that_lies_beside_an_adapter_is_a_base(tmp_path: Path, llama: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    (directory / "adapter_config.json").write_text("{}")
    assert source.find(ModelConfig(name=str(directory))).directory == directory


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_a_commit_that_is_not_in_the_cache_of_a_hub_that_is_switched_off_is_told_with_what_switches_it_on(
    name: str, tmp_path: Path
) -> None:
    asked = ("plan", "--model", "someone/something", "--set", f"model.revision={'0' * 40}", "--data", "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    settings = {each: value for each, value in os.environ.items() if each not in hub_access.OFFLINE}
    command = [sys.executable, "-m", "loradock", *asked]
    done = subprocess.run(command, cwd=tmp_path, env={**settings, name: "1"}, capture_output=True, text=True)
    assert done.returncode == HubError.exit_code
    assert f"something at {'0' * 40} is not in the local cache, and {name} switches the hub off" in done.stderr
    assert f"hint: unset {name}; or give a local directory in its place" in done.stderr


def test_a_target_that_matches_nothing_is_refused_with_the_nearest_name(llama: Path) -> None:
    config = RunConfig(lora=LoraConfig(targets=("q_porj", "v_proj", "w1")))
    with pytest.raises(ModelError) as caught:
        shape.inspect(opened(llama), config)
    assert [problem.what for problem in caught.value.problems] == [
        "target 'q_porj' matches no linear layer",
        "target 'w1' matches no linear layer",
    ]
    assert caught.value.problems[0].hint == "did you mean q_proj?"


@pytest.mark.parametrize(
    ("targets", "kinds", "remedy"),
    [
        (("q_proj", "lm_head"), ["the output head"], "lora.targets=[q_proj] --set lora.modules_to_save=[lm_head]"),
        (("embed_tokens",), ["the embedding"], "lora.targets=all-linear --set lora.modules_to_save=[embed_tokens]"),
        (
            ("lm_head", "model.embed_tokens", "v_proj"),
            ["the output head", "the embedding"],
            "lora.targets=[v_proj] --set lora.modules_to_save=[lm_head,model.embed_tokens]",
        ),
    ],
)
def test_a_target_that_is_head_or_embedding_is_told_as_such_with_settings_that_train_it(
    llama: Path, targets: tuple[str, ...], kinds: list[str], remedy: str
) -> None:
    with pytest.raises(ModelError, match="LoRA targets are the output head or the embedding") as caught:
        shape.inspect(opened(llama), RunConfig(lora=LoraConfig(targets=targets)))
    told = [problem.what.split(" is ")[1] for problem in caught.value.problems]
    assert told == [f"{kind}, on which loradock trains no LoRA" for kind in kinds]
    assert caught.value.hint == f"--set {remedy}"
    typed = load(
        None, overrides=remedy.replace("--set ", "").split(), shortcuts={"--model": str(llama), "--data": ["x.jsonl"]}
    ).config
    assert shape.inspect(opened(llama), typed).targets


def mixture_of(llama: Path, directory: Path) -> Path:
    """A configuration of Mixtral in the place of a Llama's."""
    copied = copy_tree(llama, directory)
    text = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    text |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
    (copied / "config.json").write_text(json.dumps(text), encoding="utf-8")
    return copied


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_experts_without_an_adapter_are_named_by_the_plan_and_by_the_card(
    tmp_path: Path, llama: Path, quantization: str
) -> None:
    model_config = ModelConfig(quantization=quantization)
    mixture = opened(mixture_of(llama, tmp_path / "moe"))
    without = replace(plan(), model=shape.inspect(mixture, RunConfig(model=model_config)))
    (line,) = [line for line in console.plan_lines(without) if line.startswith("experts: 4 in each of 2 layers")]
    assert "no adapter on them, which lora.targets=[all-linear,experts] gives them" in line
    every = without.model.parameters
    (found,) = model_card.not_adapted(without.as_dict()["model"])
    assert found == (
        "no adapter on",
        f"{without.model.expert_parameters:,} of {every:,} weights, which are a mixture's experts",
    )
    adapted = RunConfig(model=model_config, lora=LoraConfig(targets=("all-linear", "experts")))
    having = replace(plan(), model=shape.inspect(mixture, adapted))
    assert any("an adapter on 4 of 4 matrices of each expert" in line for line in console.plan_lines(having))
    assert not list(model_card.not_adapted(having.as_dict()["model"]))
    dense = replace(plan(), model=shape.inspect(opened(llama), RunConfig(model=model_config)))
    assert not any("adapter on them" in line for line in console.plan_lines(dense))
    assert not list(model_card.not_adapted(dense.as_dict()["model"]))


def test_what_adapters_on_experts_do_not_have_is_refused_all_at_once(tmp_path: Path, llama: Path) -> None:
    lora = LoraConfig(targets=("experts",), dropout=0.1, dora=True)
    with pytest.raises(ModelError, match="plain LoRA without dropout") as refused:
        shape.inspect(opened(mixture_of(llama, tmp_path / "moe")), RunConfig(lora=lora))
    assert [problem.hint for problem in refused.value.problems] == ["--set lora.dropout=0", "--set lora.dora=false"]


def test_a_module_to_save_that_does_not_exist_is_refused(llama: Path) -> None:
    with pytest.raises(ModelError, match=r"lora\.modules_to_save"):
        shape.inspect(opened(llama), RunConfig(lora=LoraConfig(modules_to_save=("lm_heat",))))


def test_a_length_beyond_the_positions_is_refused(llama: Path) -> None:
    config = RunConfig()
    with pytest.raises(ModelError, match="the model has 512 positions"):
        lengths.longest_row(4096, shape.inspect(opened(llama), config))


def test_experts_that_quantisation_cannot_reach_are_refused_before_loading(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(ModelError, match="int8 would cover only") as refused:
        shape.inspect(opened(mixture_of(llama, tmp_path / "moe")), RunConfig(model=ModelConfig(quantization="int8")))
    assert "--set model.quantization=nf4" in str(refused.value.hint)
