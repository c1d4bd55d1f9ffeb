"""Whole runs that embed: continued to the bit, by workers and processes alike, and a signal or a kill loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from faults.forking import Forking
from proven import unchecked
from safetensors.torch import load_file
from tiny import copy_tree, write_pairs, write_rows
from whole_runs import adapter_bytes, losses, train

from loradock.training.run import Result

pytestmark = pytest.mark.thin(1)

STEPS = 8
RUN = (
    *("objective=gritlm", f"train.max_steps={STEPS}", "train.global_batch=4", "embedding.global_batch=8"),
    *("train.workers=0", "lora.rank=4", "lora.dropout=0.1", "checkpoints.every=3", "checkpoints.keep=9"),
    *(
        "train.micro_batch=2",
        "data.max_length=64",
        "embedding.passes=cached",
        "data.validation=0.2",
        "evaluation.every=3",
    ),
)
ENGINES = ("fast", "peft")
WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pairs, and rows to answer from."""
    folder = tmp_path_factory.mktemp("data")
    return [write_pairs(folder / "pairs.jsonl"), write_rows(folder / "rows.jsonl")]


def assert_same(one: Result, other: Result) -> None:
    assert losses(one) == losses(other)
    assert adapter_bytes(one) == adapter_bytes(other)


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_continues_from_the_middle_has_the_same_bits(
    tmp_path: Path, llama: Path, data: list[Path], engine: str
) -> None:
    settings = (*RUN, f"engine={engine}")
    whole = train(tmp_path / "whole", *settings, model=llama, data=data)
    copy = copy_tree(whole.directory, tmp_path / "copy")
    for step in (6, STEPS):
        shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
    shutil.rmtree(copy / "adapter")
    again = train(copy, *settings, model=llama, data=data)
    assert again.record["resumed_from"] == "checkpoint-3"
    assert_same(again, whole)
    assert [line["in_batch_accuracy"] for line in again.evaluations] == [
        line["in_batch_accuracy"] for line in whole.evaluations
    ]


@pytest.mark.thin(6)
def test_workers_of_the_loader_change_no_bit(tmp_path: Path, llama: Path, data: list[Path]) -> None:
    alone = train(tmp_path / "alone", *RUN, model=llama, data=data)
    helped = train(tmp_path / "helped", *RUN, "train.workers=2", model=llama, data=data)
    assert_same(helped, alone)


def test_each_metric_line_has_both_losses_and_the_accuracy(tmp_path: Path, llama: Path, data: list[Path]) -> None:
    result = train(tmp_path / "run", *RUN, model=llama, data=data)
    for line in result.metrics:
        assert line["loss"] == pytest.approx(line["embedding_loss"] + line["generative_loss"], rel=1e-6)
        assert 0 <= line["in_batch_accuracy"] <= 1
    assert {"embedding_loss", "generative_loss", "in_batch_accuracy", "perplexity"} <= set(result.evaluations[-1])


def command(folder: Path, model: Path, data: Sequence[Path], *settings: str, processes: int = 1) -> list[str]:
    """The words of the run; with several processes under the launcher."""
    sets = [word for setting in (*RUN, *settings) for word in ("--set", setting)]
    files = [word for each in data for word in ("--data", str(each))]
    launch = ["launch", "--nproc", str(processes)] if processes > 1 else []
    skipped = unchecked("what a run computes is held against another one")
    words = ["train", "--model", str(model), *files, *sets, "--set", "logging.every=1", skipped]
    return [*launch, *words, "--output", str(folder / "run")]


def environment(folder: Path) -> dict[str, str]:
    """One thread, no network, a cache of its own."""
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LORADOCK_CACHE": str(folder / "cache")}
    return os.environ | own | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(signal.SIGKILL, id="SIGKILL"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.full),
    ],
)
def test_a_run_that_is_ended_in_the_middle_ends_with_the_bits_of_one_that_was_not(
    tmp_path: Path, llama: Path, data: list[Path], forking: Forking, by: signal.Signals
) -> None:
    whole = train(tmp_path / "whole", *RUN, model=llama, data=data)
    words = command(tmp_path, llama, data)
    process = forking.start(tmp_path, *words)
    assert process.wait_until((tmp_path / "run" / "checkpoints" / "checkpoint-3").is_dir, seconds=WAIT_SECONDS)
    process.send(by)
    assert process.finish(seconds=WAIT_SECONDS) == (-by if by == signal.SIGKILL else 75)
    assert not (tmp_path / "run" / "adapter").exists()
    again = forking.run(tmp_path, *words, "--resume")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").read_bytes() == adapter_bytes(whole)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_compute_what_one_does(tmp_path: Path, llama: Path, data: list[Path], engine: str) -> None:
    settings = (f"engine={engine}", "lora.dropout=0", "data.validation=0")
    alone = train(tmp_path / "alone", *RUN, *settings, model=llama, data=data)
    started = command(tmp_path, llama, data, *settings, processes=2)
    started = [sys.executable, "-m", "loradock", *started]
    done = subprocess.run(started, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = load_file(alone.adapter / "adapter_model.safetensors")
    found = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=2e-6)


@pytest.mark.thin(6)
def test_the_best_checkpoint_is_that_of_the_metric_that_is_asked_for(
    tmp_path: Path, llama: Path, data: list[Path]
) -> None:
    asked = ("checkpoints.keep_best=true", "checkpoints.metric=in_batch_accuracy", "evaluation.every=1")
    best = ("train.learning_rate=0.01", "embedding.temperature=0.5")
    result = train(tmp_path / "run", *RUN, *asked, *best, model=llama, data=data)
    accuracies = [line["in_batch_accuracy"] for line in result.evaluations]
    assert result.outcome.best_step == 1 + accuracies.index(max(accuracies))
