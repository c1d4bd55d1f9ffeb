"""What only cards can tell of the fsdp backend: NCCL, NF4 parts on cards, offload to pinned memory, what is kept.

Never run yet: docs/gpu.md keeps the answers. On a machine with two cards or more: scripts/test tests/gpu -rA -s
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make_model
from proven import unchecked

CARDS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(CARDS < 2, reason="no GPU beside the first")

STEPS = 8
RUN = (
    f"train.max_steps={STEPS}",
    "train.global_batch=16",
    "train.micro_batch=2",
    "data.max_length=64",
    "logging.every=1",
    "lora.init=gaussian",
    "train.learning_rate=1e-3",
)
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_hidden_layers": 8}
TOLERANCE = 2e-2
"""Of bfloat16 losses, whose products are rounded in another order."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.4 billion weights, so that a part is well above what the allocator rounds up."""
    return make_model(tmp_path_factory.mktemp("model"), "llama", **SHAPE)


def run(folder: Path, *settings: str, model: Path, rows: Path, count: int) -> dict[str, Any]:
    """A run under torchrun: its record, losses and the peak that the allocator reserved on rank 0's card."""
    folder.mkdir()
    sets = [word for setting in (*RUN, *settings) for word in ("--set", setting)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    train = ["-m", "loradock", "train", "--model", str(model), "--data", str(rows), "--output", str(folder / "out")]
    environment = os.environ | {"LORADOCK_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [*launch, *train, unchecked("two GPUs"), *sets], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = list(map(json.loads, (folder / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    steps = [line for line in lines if line["kind"] == "train"]
    record = json.loads((folder / "out" / "run.json").read_text(encoding="utf-8"))
    return {"record": record, "losses": [line["loss"] for line in steps], "peak": steps[-1]["memory_bytes"]}


def told(found: dict[str, Any]) -> str:
    share = next(each for each in found["record"]["engine"] if each["name"] == "share of the model")
    return f"{share['why']}; peak {found['peak'] / 2**20:,.0f} MiB reserved"


@pytest.mark.parametrize("offload", ["false", "true"])
def test_cards_that_share_a_model_train_what_one_does(
    offload: str, tmp_path: Path, model: Path, rows: Path, record_property: Any
) -> None:
    one = run(tmp_path / "one", "engine=peft", model=model, rows=rows, count=1)
    asked = ("train.parallel=fsdp", f"train.cpu_offload={offload}")
    many = run(tmp_path / "many", *asked, model=model, rows=rows, count=CARDS)
    record_property("told", f"{CARDS} cards: {told(many)}; one card: {one['peak'] / 2**20:,.0f} MiB")
    assert many["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    share = next(each for each in many["record"]["engine"] if each["name"] == "share of the model")
    assert share["value"] == pytest.approx(1 / CARDS, rel=0.02)
    assert many["peak"] < one["peak"]


@pytest.mark.parametrize("offload", ["false", "true"])
@pytest.mark.parametrize("stage", [2, 3])
def test_cards_under_zero_train_what_one_does(
    stage: int, offload: str, tmp_path: Path, model: Path, rows: Path, record_property: Any
) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    one = run(tmp_path / "one", "engine=peft", model=model, rows=rows, count=1)
    asked = (f"train.parallel=zero{stage}", f"train.cpu_offload={offload}")
    many = run(tmp_path / "many", *asked, model=model, rows=rows, count=CARDS)
    record_property("told", f"{CARDS} cards: {told(many)}; one card: {one['peak'] / 2**20:,.0f} MiB")
    assert many["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    share = next(each["value"] for each in many["record"]["engine"] if each["name"] == "share of the model")
    assert share["local_trained"] == pytest.approx(share["trained"] / CARDS, rel=0.02)
    assert share["local_weights"] == pytest.approx(share["weights"] / (CARDS if stage == 3 else 1), rel=0.02)
    if stage == 3:
        assert many["peak"] < one["peak"]


def test_a_run_that_was_repeated_gives_the_same_losses(tmp_path: Path, model: Path, rows: Path) -> None:
    asked = ("train.parallel=fsdp", "deterministic=true")
    runs = [run(tmp_path / name, *asked, model=model, rows=rows, count=2) for name in ("first", "second")]
    assert runs[0]["losses"] == runs[1]["losses"]
