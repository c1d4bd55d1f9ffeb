"""The memory model of processes that share a model: against published runs, part by part, and what it decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts import recorded
from facts.recorded import data, machine, models, planned

from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.facts import ExpertShape, Facts, ModelFacts
from loradock.plan.memory import sharded
from loradock.plan.memory.base import RUNTIME_BYTES
from loradock.plan.memory.peft import Batch
from loradock.plan.memory.sharded import NCCL_BYTES, Setting, Sharing

PUBLISHED = json.loads((Path(__file__).parents[1] / "facts" / "many_gpus.json").read_text(encoding="utf-8"))
MODELS = {each["key"]: recorded.model(**each) for each in PUBLISHED["models"]}
LLAMA = MODELS["llama-2-70b"]
LOGIT_BYTES = 2 + 4 + 4
"""Of those runs, which make all logits: bfloat16, float32, and their gradient."""
WITHIN = 0.125
GIB = 2**30


def setting(model: ModelFacts, *, rank: int = 16, checkpointed: int | None = None, **other: Any) -> Setting:
    known: dict[str, Any] = {"quantization": "nf4", "double_quant": True, "dtype": "bfloat16"}
    layers = model.layers if checkpointed is None else checkpointed
    return Setting(**{**known, **other}, rank=rank, optimizer="adamw_fused", checkpointed=layers)


def expected(run: dict[str, Any]) -> float:
    """GiB that the model gives for a published run, counted as it was seen, with that run's logits."""
    model, batch = MODELS[run["model"]], Batch(rows=run["rows"], length=run["length"])
    sharing = Sharing(mode=run["mode"], processes=run["cards"], cpu_offload=run["offload"])
    parts = sharded.parts(model, batch, setting=setting(model, rank=run["rank"]), sharing=sharing)
    outside = RUNTIME_BYTES + NCCL_BYTES if run["seen"] == "reserved" else 0
    return (parts["total"] - parts["logits"] + batch.tokens * model.vocabulary * LOGIT_BYTES - outside) / GIB


def seen_gib(run: dict[str, Any]) -> float:
    """What the run took; nvidia-smi's figures are given in GB."""
    return run["gib"] if "gib" in run else run["gb"] * 1e9 / GIB


def name(run: dict[str, Any]) -> str:
    offload = "+offload" if run["offload"] else ""
    return f"{run['model']}-{run['cards']}x{run['mode']}{offload}-{run['rows']}x{run['length']}-{run['source']}"


@pytest.mark.parametrize("run", [run for run in PUBLISHED["runs"] if run["seen"] != "fits"], ids=name)
def test_it_is_near_published_runs(run: dict[str, Any]) -> None:
    assert expected(run) == pytest.approx(seen_gib(run), rel=WITHIN)


@pytest.mark.parametrize("run", [run for run in PUBLISHED["runs"] if run["seen"] == "fits"], ids=name)
def test_what_fitted_a_gpu_fits_by_the_model(run: dict[str, Any]) -> None:
    assert expected(run) < run["gib"]


def bytes_of(mode: str, processes: int, **more: Any) -> dict[str, int]:
    sharing = Sharing(mode=mode, processes=processes, **more)
    return sharded.parts(LLAMA, Batch(rows=1, length=1024), setting=setting(LLAMA), sharing=sharing)


def test_each_mode_cuts_what_its_paper_says() -> None:
    adapters = LLAMA.adapter_parameters(16)
    ddp, zero2, zero3, fsdp = (bytes_of(mode, 8) for mode in ("ddp", "zero2", "zero3", "fsdp"))
    assert ddp["optimiser state"] == 8 * adapters
    assert zero2["optimiser state"] == zero3["optimiser state"] == adapters
    assert ddp["base weights"] == zero2["base weights"] == LLAMA.reached_parameters // 2
    assert zero3["base weights"] == fsdp["base weights"] == LLAMA.reached_parameters // 16
    assert ddp["adapters and gradients"] - zero2["adapters and gradients"] == adapters * 4 * 7 // 8
    assert fsdp["adapters and gradients"] == adapters * 8 // 8
    assert ddp["gathered layers"] == zero2["gathered layers"] == 0 < zero3["gathered layers"]
    assert ddp["scales"] == fsdp["scales"] == pytest.approx(LLAMA.reached_parameters * 0.127 / 8, rel=1e-6)
    assert zero3 == fsdp
    assert ddp["total"] > zero2["total"] > fsdp["total"]


def test_experts_are_cut_with_their_scales_and_a_layer_of_them_is_gathered_with_their_adapters() -> None:
    """In every second layer, as some mixtures have them; what is gathered is the layer that has them."""
    shapes = tuple(
        ExpertShape(name=f"model.layers.{layer}.mlp.experts.{key}", count=64, active=4, rows=rows, columns=columns)
        for layer in range(1, LLAMA.layers, 2)
        for key, rows, columns in (("gate_up_proj", 2048, 8192), ("down_proj", 8192, 1024))
    )
    bare = replace(LLAMA, experts=shapes)
    adapted = replace(bare, expert_targets=tuple(matrix.name for matrix in shapes))
    batch, sharing = Batch(rows=1, length=1024), Sharing(mode="fsdp", processes=8)
    dense, mixture, with_adapters = (
        sharded.parts(model, batch, setting=setting(model), sharing=sharing) for model in (LLAMA, bare, adapted)
    )
    stored = bare.expert_parameters * 4.127 / 8
    assert mixture["experts"] == pytest.approx(stored / 8, rel=1e-4)
    assert "experts" not in dense
    assert (mixture["base weights"], mixture["scales"]) == (dense["base weights"], dense["scales"])
    a_layer = stored / (LLAMA.layers // 2)
    assert mixture["gathered layers"] - dense["gathered layers"] == pytest.approx(2 * a_layer, rel=1e-3)
    adapters = 64 * 16 * (2048 + 8192 + 8192 + 1024) * 4
    assert with_adapters["gathered layers"] - mixture["gathered layers"] == pytest.approx(2 * adapters, rel=1e-3)
    assert mixture["activations"] > dense["activations"]
    whole = sharded.parts(bare, batch, setting=setting(bare), sharing=Sharing(mode="ddp", processes=8))
    assert whole["experts"] == pytest.approx(stored, rel=1e-4)


def test_eager_attention_keeps_the_scores_of_all_heads_here_too() -> None:
    model, batch = replace(LLAMA, heads=64), Batch(rows=1, length=1024)
    sharing = Sharing(mode="fsdp", processes=8)
    fused, eager = (
        sharded.parts(model, batch, setting=setting(model, checkpointed=0, attention=attention), sharing=sharing)
        for attention in ("sdpa", "eager")
    )
    scores = 64 * 1024**2 * 2
    assert eager["activations"] - fused["activations"] == (model.layers + 3) * scores


def test_activations_do_not_depend_on_how_many_share_and_fewer_checkpointed_layers_keep_more() -> None:
    assert (
        bytes_of("fsdp", 2)["activations"] == bytes_of("fsdp", 64)["activations"] == bytes_of("ddp", 1)["activations"]
    )
    batch, sharing = Batch(rows=1, length=1024), Sharing(mode="fsdp", processes=8)
    kept = [
        sharded.parts(LLAMA, batch, setting=setting(LLAMA, checkpointed=count), sharing=sharing)["activations"]
        for count in (80, 79, 40, 1)
    ]
    assert kept == sorted(kept)
    assert len(set(kept)) == 4


def test_offload_moves_weights_adapter_and_moments_to_the_host() -> None:
    there, gone = bytes_of("fsdp", 4), bytes_of("fsdp", 4, cpu_offload=True)
    moved = ("base weights", "adapters and gradients", "optimiser state")
    assert [gone[part] for part in moved] == [0, 0, 0]
    sharing = Sharing(mode="fsdp", processes=4, cpu_offload=True)
    assert sharded.host_bytes(LLAMA, setting=setting(LLAMA), sharing=sharing) == sum(there[part] for part in moved)


def gpus(gpu: str, count: int) -> Facts:
    return machine(gpu, world_size=count, local_world_size=count)


def decided(gpu: str, count: int, *, model: str = "llama-3-70b", **asked: Any) -> dict[str, Any]:
    made = planned(facts=gpus(gpu, count), model=models()[model], data=data(), config=recorded.config(**asked))
    assert made.memory_bytes["total"] <= gpus(gpu, count).gpu.memory_bytes * 0.9
    return {each.name: each.value for each in made.decisions} | {"why": recorded.decision(made, "parallel").why}


@pytest.mark.parametrize(
    ("gpu", "count", "model", "parallel", "engine", "offload"),
    [
        ("h100", 8, "mistral-7b", "ddp", "fast", False),
        ("rtx-4090", 2, "mistral-7b", "ddp", "fast", False),
        ("h100", 8, "llama-3-70b", "ddp", "fast", False),
        ("rtx-3090", 4, "llama-3-70b", "fsdp", "fsdp", False),
        ("rtx-3090", 2, "llama-3-70b", "fsdp", "fsdp", True),
        ("a100-40", 2, "llama-3-70b", "fsdp", "fsdp", False),
        ("h100", 1, "llama-3-70b", "none", "fast", False),
    ],
)
def test_fsdp_is_decided_only_where_the_model_does_not_fit_one_gpu_and_offload_only_where_nothing_else_fits(
    gpu: str, count: int, model: str, parallel: str, engine: str, offload: bool
) -> None:
    """The rule "more than 3B needs sharding" is not used: 70B in NF4 fit a GPU of 80 GB."""
    found = decided(gpu, count, model=model)
    assert (found["parallel"], found["engine"], found["cpu_offload"]) == (parallel, engine, offload)
    assert count == 1 or "GiB for one row on one GPU" in found["why"]


def test_what_fits_nowhere_says_what_it_needs_with_and_without_offload() -> None:
    rows = data(longest=65_536, limit=65_536)
    with pytest.raises(OutOfMemory, match=r"of 21.6 GiB on each of 2 GPUs that shard the model, and .* in host memory"):
        planned(facts=gpus("rtx-3090", 2), model=models()["llama-3-70b"], data=rows)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"parallel": "fsdp", "engine": "fast"}, "engine fast does not support it"),
        ({"parallel": "zero3", "engine": "fast"}, "engine fast does not support it"),
        ({"parallel": "ddp", "engine": "fsdp"}, "engine fsdp does not support it"),
        ({"parallel": "fsdp", "lora": {"dora": True}}, "train.parallel fsdp cannot be used: it has no DoRA"),
        ({"parallel": "zero3", "lora": {"dora": True}}, "train.parallel zero3 cannot be used: DoRA takes the norms of"),
        ({"parallel": "zero2", "optimizer": "adafactor"}, "zero2 cannot be used: DeepSpeed shards the two moments of"),
        ({"parallel": "zero3", "optimizer": "lion"}, "zero3 cannot be used: DeepSpeed shards the two moments of AdamW"),
        ({"parallel": "zero3", "lora": {"init": "pissa"}}, "zero3 cannot be used: lora.init pissa takes unquantised"),
        (
            {"parallel": "zero3", "lora": {"modules_to_save": ["lm_head"]}},
            "modules_to_save copies unquantised base weights",
        ),
        ({"parallel": "fsdp", "optimizer": "adamw"}, "its optimiser is adamw_fused, not adamw"),
        ({"parallel": "ddp", "cpu_offload": True}, "train.cpu_offload cannot be used: each GPU has the whole model"),
    ],
)
def test_modes_that_cannot_be_are_refused_and_not_replaced(asked: dict[str, Any], problem: str) -> None:
    train = {key: value for key, value in asked.items() if key not in ("engine", "lora")}
    other = {key: value for key, value in asked.items() if key in ("engine", "lora")}
    with pytest.raises(ConfigError, match=problem):
        decided("h100", 2, train=train, **other)


@pytest.mark.parametrize("asked", ["ddp", "fsdp", "zero2", "zero3"])
def test_a_mode_that_is_asked_for_with_one_process_is_an_error(asked: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=f"train.parallel {asked} shards the model over several ranks"):
        decided("h100", 1, train={"parallel": asked})


def test_each_way_to_shard_has_its_backend() -> None:
    assert decided("h100", 2, train={"parallel": "zero3"})["engine"] == "zero"
    assert decided("h100", 2, train={"parallel": "fsdp"})["engine"] == "fsdp"
    assert decided("h100", 2, engine="fsdp")["parallel"] == "fsdp"
    assert decided("h100", 2, engine="peft")["parallel"] == "ddp"


def test_as_few_layers_are_computed_again_as_fit() -> None:
    plenty, few = (decided(gpu, 8, train={"parallel": "fsdp"}) for gpu in ("h100", "rtx-3090"))
    assert 0 <= plenty["checkpointed_layers"] < few["checkpointed_layers"] <= 80
    assert decided("h100", 8, train={"parallel": "fsdp", "checkpointing": 33})["checkpointed_layers"] == 33
