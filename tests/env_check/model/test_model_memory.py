"""Memory for the configured model: real configurations against this machine, and public ones against public GPUs."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import Examine, Faults
from facts.recorded import config, machine, models

from loradock import demo
from loradock.env_check.base import Finding
from loradock.env_check.intent import intent
from loradock.env_check.model import model_memory
from loradock.machine import Host, marks
from loradock.model import kept_facts, shape
from loradock.model.description import describe

BASE = Path(demo.__file__).parent / "base"
# The public config.json of Llama-3-70B; its weights are 70,553,706,496 in bfloat16.
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
WEIGHTS_70B = 70_553_706_496


def huge(directory: Path) -> Path:
    """A directory with that configuration and a weight file of the right length, of which the disk holds the header."""
    shutil.copytree(BASE, directory)
    (directory / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    entry = {"dtype": "BF16", "shape": [WEIGHTS_70B], "data_offsets": [0, 2 * WEIGHTS_70B]}
    header = json.dumps({"weights": entry}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * WEIGHTS_70B)
    return directory


def written(folder: Path, **sections: Any) -> str:
    file = folder / "run.yaml"
    file.write_text(json.dumps({"data": {"sources": [str(BASE.parent / "train.jsonl")]}, **sections}), encoding="utf-8")
    return str(file)


def told(finding: Finding) -> dict[str, Any]:
    """A finding as --json gives it."""
    return {**asdict(finding), "check": "model-memory"}


@pytest.mark.thin(4)
def test_70_billion_weights_do_not_fit_into_this_machine_and_no_weight_is_read(
    examined: Examine, tmp_path: Path, faults: Faults
) -> None:
    name = str(huge(tmp_path / "llama-70b"))
    seen = examined("--only", "model-memory", "--config", written(tmp_path, model={"name": name}, device="cpu"))
    finding = seen.one("model-memory")
    faults.seen("70B model on a small machine", made="real", finding=finding, check="model-memory")
    assert seen.exit_code == 71
    measured = seen.content["measured"]["model-memory"]
    assert measured["needed_bytes"] > measured["weights_bytes"] > 34e9 > measured["available_bytes"] / 2


def test_what_is_no_causal_language_model_is_refused_and_a_small_one_fits(tmp_path: Path, faults: Faults) -> None:
    def looked(directory: Path) -> Finding:
        asked = config(model={"name": str(directory)}, device="cpu")
        (found,) = model_memory.look(Host(), machine(), intent(Host(), asked))
        return found

    model = Path(shutil.copytree(BASE, tmp_path / "t5"))
    (model / "config.json").write_text('{"model_type": "t5", "d_model": 64}', encoding="utf-8")
    encoder = told(looked(model))
    faults.seen("not a causal language model", made="real", finding=encoder, check="model-memory", exit_code=78)
    assert looked(BASE).what == "1 x 512 tokens of LlamaForCausalLM fit on the CPU's memory"


@pytest.mark.parametrize(
    ("fault", "gpu", "model", "length", "settings", "severity", "remedy"),
    [
        ("70B model on an A10", "a10", "llama-3-70b", 1024, {}, "error", "loradock train --set model.name=DIR ..."),
        (
            "7B model in 16 bit on a T4",
            "t4",
            "mistral-7b",
            1024,
            {"model": {"quantization": "none"}},
            "error",
            "loradock train --set model.quantization=nf4 ...",
        ),
        (
            "packed rows too long for the GPU",
            "a10",
            "mistral-7b",
            32768,
            {"engine": "peft", "train": {"packing": True}},
            "error",
            "loradock train --set data.max_length=16384 ...",
        ),
        (
            "rows too long for the GPU",
            "t4",
            "mistral-7b",
            16384,
            {},
            "warning",
            "loradock train --set data.max_length=8192 ...",
        ),
        (
            "no checkpointing",
            "a10",
            "llama-3-8b",
            8192,
            {"train": {"checkpointing": False, "packing": True}},
            "error",
            "loradock train --set train.checkpointing=true ...",
        ),
    ],
)
def test_what_does_not_fit_on_a_gpu_says_what_would(
    fault: str,
    gpu: str,
    model: str,
    length: int,
    settings: dict[str, Any],
    severity: str,
    remedy: str,
    faults: Faults,
) -> None:
    (found,) = model_memory.judge(
        config(**settings), facts=machine(gpu, flash=True), model=models()[model], length=length, on_gpu=True
    )
    assert found.severity == severity, found
    assert found.remedy == remedy
    faults.seen(fault, made="constructed", finding=told(found), check="model-memory", exit_code=80)


@pytest.mark.parametrize(("gpu", "model"), [("a10", "llama-3-8b"), ("t4", "mistral-7b"), ("h200", "llama-3-70b")])
def test_a_model_that_is_known_to_train_on_a_gpu_fits(gpu: str, model: str) -> None:
    (found,) = model_memory.judge(config(), facts=machine(gpu), model=models()[model], length=1024, on_gpu=True)
    assert found.severity == "ok", found


@pytest.mark.parametrize(
    ("settings", "what", "remedy"),
    [
        ({"device": "cuda"}, "device is cuda, but no GPU", "loradock env-check --only gpu"),
        (
            {"model": {"compute_dtype": "float16"}},
            "compute_dtype float16 needs a GPU",
            "loradock train --set model.compute_dtype=float32 ...",
        ),
        ({"lora": {"targets": ["q_prog", "v_proj"]}}, "'q_prog'", "--set 'lora.targets=[q_proj, v_proj]' ..."),
        ({"lora": {"targets": ["w_pack"]}}, "'w_pack'", "loradock train --set lora.targets=all-linear ..."),
        ({"lora": {"modules_to_save": ["lm_heat"]}}, "'lm_heat'", "--set 'lora.modules_to_save=[lm_head]' ..."),
        ({"lora": {"modules_to_save": ["xyz"]}}, "'xyz'", "loradock train --set 'lora.modules_to_save=[]' ..."),
        ({"data": {"max_length": 4096}}, "data.max_length is 4096", "loradock train --set data.max_length=512 ..."),
    ],
)
def test_what_the_configuration_asks_for_in_vain_is_mended_by_its_own_key(
    settings: dict[str, Any], what: str, remedy: str, faults: Faults
) -> None:
    asked = config(**{**settings, "model": {"name": str(BASE), **settings.get("model", {})}})
    (found,) = model_memory.look(Host(), replace(machine(), in_container=False), intent(Host(), asked))
    assert found.severity == "error"
    assert what in found.what
    assert found.remedy.endswith(remedy)
    if "device" in settings:
        faults.seen("device: cuda, no GPU, a model", made="real", finding=told(found), check="model-memory")
    elif "compute_dtype" in settings.get("model", {}):
        faults.seen("float16 on a CPU", made="real", finding=told(found), check="model-memory")


def test_inside_a_container_a_gpu_is_given_by_the_command_that_starts_it() -> None:
    asked = config(model={"name": str(BASE)}, device="cuda")
    (found,) = model_memory.look(Host(), replace(machine(), in_container=True), intent(Host(), asked))
    assert found.remedy == "docker run --gpus all ..."


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"train": {"parallel": "fsdp"}}, "train.parallel fsdp"),
        ({"train": {"parallel": "zero3"}}, "train.parallel zero3"),
        ({"engine": "fsdp"}, "engine fsdp"),
    ],
)
def test_a_mode_of_several_processes_is_judged_for_them_where_this_one_is_alone(
    asked: dict[str, Any], what: str
) -> None:
    """env-check is one process; those of the run are started later."""
    wanted = config(model={"name": str(BASE)}, device="cpu", **asked)
    alone = replace(machine(), gpus=(), world_size=1, local_world_size=None)
    fits, warned = model_memory.look(Host(), alone, intent(Host(), wanted))
    assert fits.severity == "ok", fits
    assert (warned.severity, warned.remedy) == ("warning", "loradock launch --nproc 2 train ...")
    assert warned.what.startswith(f"{what} shards the model over several ranks, and this is one process: checked for 2")
    (launched,) = model_memory.look(Host(), replace(alone, world_size=4), intent(Host(), wanted))
    assert launched.severity == "ok"
    assert launched.measured["needed_bytes"] < fits.measured["needed_bytes"]


def test_a_base_that_was_looked_at_before_is_judged_the_same_and_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = config(model={"name": str(BASE)}, device="cpu")
    alone = replace(machine(), gpus=(), world_size=1, local_world_size=None)
    here = intent(Host(), wanted)
    opened = model_memory.look(Host(), alone, here)
    monkeypatch.setattr(marks, "SETTLED_NS", 0)
    key = kept_facts.key_of(wanted, BASE)
    kept_facts.keep(shape.inspect(describe(wanted.model), wanted), key=key, now=key, folder=tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("the base was opened")

    monkeypatch.setattr(shape, "inspect", refuse)
    known = replace(here, base_facts=kept_facts.known(key, tmp_path))
    assert (model_memory.CHECK.level_with(here), model_memory.CHECK.level_with(known)) == ("compute", "quick")
    assert model_memory.look(Host(), alone, known) == opened
