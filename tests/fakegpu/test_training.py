"""Trainings on the stand-in GPU: every family, what the plan may choose, both engines, and devices of other kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mixtures
import pytest
from fakegpu.commands import Gpus, run, training
from families import FAMILIES, make_model
from hybrids import make_hybrid
from tiny import write_pairs
from wrappers import KINDS, make_wrapper


def thinned(names: Iterable[str], *default: str) -> list[Any]:
    """Parameters of a test: these by default, all with --full; tests/training and tests/merge have all on the CPU."""
    assert set(default) <= set(names)
    return [pytest.param(name, marks=() if name in default else pytest.mark.full) for name in names]


@pytest.fixture(scope="module")
def plain(gpu: Gpus, tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path):
    """What a training without any option gives, that of others is held against."""
    return gpu.train(tmp_path_factory.mktemp("plain") / "run", model=llama, data=rows)


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", thinned(FAMILIES, "llama", "gemma2", "phi3"))
def test_every_family_trains(gpu: Gpus, tmp_path: Path, rows: Path, family: str) -> None:
    """The engine's self-check against PEFT, on this device, is what lets it begin."""
    ended = gpu.train(tmp_path / "run", model=make_model(tmp_path / "model", family), data=rows)
    assert ended.decided("engine") == "fast"
    assert ended.record["facts"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert len(ended.losses) == 3
    assert ended.counts["launch_faults"] == ended.counts["capture_faults"] == 0


@pytest.mark.thin(6)
def test_rows_of_new_tokens_train_by_graphs_too(gpu: Gpus, tmp_path: Path, llama: Path) -> None:
    data = tmp_path / "rows.jsonl"
    row = {"instruction": "a <go> river", "output": "<to> stone <go>"}
    data.write_text("\n".join([json.dumps(row)] * 32), "utf-8")
    settings = ('tokenizer.add_tokens=["<go>","<to>"]', "train.max_steps=6")
    plain, graphs = (
        gpu.train(tmp_path / name, *settings, f"train.cuda_graphs={name}", model=llama, data=data)
        for name in ("false", "true")
    )
    assert plain.decided("engine") == graphs.decided("engine") == "fast"
    assert graphs.losses == pytest.approx(plain.losses, rel=1e-3)
    assert graphs.losses[-1] < graphs.losses[0]
    assert "capture failed" not in graphs.text
    assert graphs.counts["driver_launches"] < plain.counts["driver_launches"]
    assert graphs.counts["launch_faults"] == graphs.counts["capture_faults"] == 0


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", thinned(KINDS, "gemma3", "qwen3_5"))
def test_a_model_that_sees_trains_by_its_language_model_alone(gpu: Gpus, tmp_path: Path, rows: Path, kind: str) -> None:
    ended = gpu.train(tmp_path / "run", model=make_wrapper(tmp_path / "model", kind), data=rows)
    assert ended.decided("engine") == "fast"
    assert ended.record["plan"]["model"]["left_out"]
    assert len(ended.losses) == 3
    assert ended.counts["launch_faults"] == ended.counts["capture_faults"] == 0


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", thinned(mixtures.KINDS, "qwen2_moe", "gpt_oss"))
def test_a_mixture_trains_with_adapters_on_its_experts(gpu: Gpus, tmp_path: Path, rows: Path, kind: str) -> None:
    model = mixtures.make(tmp_path / "model", kind)
    ended = gpu.train(tmp_path / "run", "lora.targets=[all-linear,experts]", "lora.dropout=0", model=model, data=rows)
    assert ended.decided("engine") == ("fast" if kind in mixtures.FAST else "peft")
    assert ended.record["plan"]["model"]["expert_targets"]
    assert len(ended.losses) == 3
    assert ended.counts["launch_faults"] == ended.counts["capture_faults"] == 0


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", thinned(FAMILIES, "gemma"))
def test_every_family_gives_the_same_bits_recomputed(gpu: Gpus, tmp_path: Path, rows: Path, family: str) -> None:
    model = make_model(tmp_path / "model", family)
    whole, *others = (
        gpu.train(tmp_path / str(index), *settings, model=model, data=rows)
        for index, settings in enumerate(((), ("train.checkpointing=true",), ("model.cache_weights=0",)))
    )
    for other in others:
        assert other.losses == whole.losses
        assert other.adapter == whole.adapter


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "settings",
    [
        ("train.checkpointing=true",),
        ("train.checkpointing=1", "model.cache_weights=1"),
        ("model.cache_weights=0",),
        ("train.cuda_graphs=false",),
    ],
    ids=" ".join,
)
def test_what_saves_memory_or_time_changes_no_loss(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, plain, settings: tuple[str, ...]
) -> None:
    ended = gpu.train(tmp_path / "run", *settings, model=llama, data=rows)
    assert ended.losses == plain.losses
    assert ended.adapter == plain.adapter


@pytest.mark.thin(6)
def test_fresh_memory_that_is_not_zero_changes_nothing(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, plain
) -> None:
    assert gpu.train(tmp_path / "run", model=llama, data=rows, poison=True).losses == plain.losses


@pytest.mark.thin(6)
def test_dropout_and_evaluation_train(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path) -> None:
    """A graph that is replayed takes the masks of its own step, as launches do."""
    settings = (
        "lora.dropout=0.1",
        "data.validation=0.25",
        "evaluation.every=4",
        "train.micro_batch=1",
        "train.max_steps=8",
    )
    replayed, launched = (
        gpu.train(tmp_path / way, *settings, f"train.cuda_graphs={way}", model=llama, data=rows)
        for way in ("true", "false")
    )
    assert '"kind": "eval"' in (replayed.output / "metrics.jsonl").read_text()
    assert replayed.decided("cuda_graphs")
    assert "capture failed" not in replayed.text
    assert replayed.counts["driver_launches"] < launched.counts["driver_launches"]
    assert replayed.losses == pytest.approx(launched.losses, rel=1e-5)


@pytest.mark.thin(6)
def test_the_trl_engine_gives_the_losses_of_the_fast_one(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, plain
) -> None:
    settings = ("engine=peft", *(f"train.{name}={plain.decided(name)}" for name in ("micro_batch",)))
    ended = gpu.train(tmp_path / "run", *settings, model=llama, data=rows)
    assert ended.losses == pytest.approx(plain.losses, rel=2e-2)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw_8bit"])
def test_optimisers_of_8_bits_train(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, optimizer: str) -> None:
    gpu.train(tmp_path / "run", "engine=peft", f"train.optimizer={optimizer}", model=llama, data=rows)


@pytest.mark.thin(6)
def test_a_gpu_without_bfloat16_trains_in_float16_with_a_loss_scale(tmp_path: Path, llama: Path, rows: Path) -> None:
    device = {"cc": 75, "name": "Tesla T4", "memory": 15 << 30}
    ended = run(tmp_path / "run", *training(model=llama, data=rows), **device)
    assert ended.exit_code == 0, ended.text[-5000:]
    assert ended.decided("compute_dtype") == "float16"
    assert len(ended.losses) == 3


@pytest.mark.thin(6)
@pytest.mark.parametrize("passes", ["direct", "cached"])
def test_documents_are_embedded_by_bidirectional_kernels_whichever_passes_stay(
    gpu: Gpus, tmp_path: Path, llama: Path, passes: str
) -> None:
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    settings = ("objective=embedding", "embedding.global_batch=8", f"embedding.passes={passes}")
    ended = gpu.train(tmp_path / "run", *settings, model=llama, data=pairs)
    assert ended.decided("engine") == "fast"
    assert "flash-torch" in [each["value"] for each in ended.record["engine"]]
    assert ended.counts["launch_faults"] == 0
    assert len(ended.losses) == 3


@pytest.mark.thin(6)
def test_documents_that_see_one_another_packed_are_padded_with_a_warning(gpu: Gpus, tmp_path: Path, rows: Path) -> None:
    """Granite 4 without recurrent layers: transformers gives its attention's mask no positions."""
    model = make_hybrid(tmp_path / "model", "granitemoehybrid", layer_types=["full_attention"] * 2)
    ended = gpu.train(tmp_path / "run", "engine=peft", model=model, data=rows)
    assert ended.decided("packing") is False
    assert "the run continues with padded rows" in ended.text
    assert len(ended.losses) == 3


@pytest.mark.thin(6)
def test_rates_and_ranks_of_their_own_are_the_same_on_both_engines(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path):
    settings = ("train.loraplus_lr_ratio=16", "lora.rank_pattern={q_proj: 2}", "train.schedule=wsd")
    fast, peft = (
        gpu.train(tmp_path / engine, *settings, f"engine={engine}", model=llama, data=rows)
        for engine in ("fast", "peft")
    )
    assert fast.decided("cuda_graphs")
    assert fast.losses == pytest.approx(peft.losses, rel=2e-3)
    plain = gpu.train(tmp_path / "plain", *settings[1:], model=llama, data=rows)
    assert plain.losses[1:] != pytest.approx(fast.losses[1:], rel=2e-3)
