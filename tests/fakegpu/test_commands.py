"""The other commands on stand-in GPUs: env-check at every level, profile, diagnose, net-check, a resume."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from fakegpu.commands import Gpus, run, training

STEPS = ("train.max_steps=8", "checkpoints.every=2")


@pytest.mark.thin(4)
@pytest.mark.parametrize("level", ["quick", "compute", pytest.param("bench", marks=pytest.mark.full)])
def test_env_check_finds_a_healthy_gpu_healthy(tmp_path: Path, level: str) -> None:
    """Its shares of published figures are a CPU's, so what `bench` finds of speed is not judged here.

    The files of the packages are those that tests/env_check looks at.
    """
    groups = "system,gpu,compute" + (",bench" if level == "bench" else "")
    ended = run(tmp_path / "run", "env-check", "--level", level, "--only", groups, "--json")
    report = json.loads(ended.text[ended.text.index("{") :])
    wrong = [each for each in report["findings"] if each["severity"] == "error"]
    if level != "bench":
        assert not wrong
        assert ended.exit_code == 0
    assert "gpu" in {each["group"] for each in report["findings"]}


@pytest.mark.full
def test_a_slice_of_a_gpu_trains(tmp_path: Path, llama: Path, rows: Path) -> None:
    """NVML tells of the whole device, the runtime of the slice."""
    device = {"name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "cc": 80, "memory": 10 << 30, "nvml_memory": 80 << 30}
    ended = run(tmp_path / "run", *training(model=llama, data=rows), **device)
    assert ended.exit_code == 0, ended.text[-4000:]
    assert "10 GiB" in ended.why("device")


@pytest.mark.thin(4)
def test_a_training_that_was_terminated_goes_on_to_the_same_bits(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    whole = gpu.train(tmp_path / "whole", *STEPS, model=llama, data=rows)
    arguments = training(*STEPS, model=llama, data=rows)
    started = gpu.start(tmp_path / "cut", *arguments)
    assert started.wait_until(lambda: "step 3/8" in started.text())
    started.send(signal.SIGTERM)
    assert started.finish() != 0
    again = gpu.run(tmp_path / "cut", *arguments)
    assert again.exit_code == 0, again.text[-4000:]
    assert again.record["attempts"][0]["status"] == "interrupted"
    assert again.adapter == whole.adapter


@pytest.mark.thin(4)
def test_profile_names_what_the_device_ran(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path) -> None:
    given = ("--model", str(llama), "--data", str(rows), "--output", "out", "--set", "train.global_batch=8")
    ended = gpu.run(tmp_path / "run", "profile", *given)
    assert ended.exit_code == 0, ended.text[-4000:]


@pytest.mark.full
def test_diagnose_measures_trials_on_the_device(tmp_path: Path, llama: Path, rows: Path) -> None:
    given = ("--model", str(llama), "--data", str(rows), "--output", "out")
    trials = ("--steps", "4", "--budget", "120s", "--trials", "cuda-graphs-off,engine-peft")
    ended = run(tmp_path / "run", "diagnose", *given, *trials, "--set", "train.global_batch=8")
    assert ended.exit_code == 0, ended.text[-4000:]
    assert "engine-peft" in ended.text


@pytest.mark.thin(4)
def test_monitoring_samples_the_gpu_through_nvml(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path) -> None:
    ended = gpu.train(tmp_path / "run", "logging.monitor_seconds=0.1", model=llama, data=rows)
    samples = list(map(json.loads, (ended.output / "monitor.jsonl").read_text().splitlines()))
    assert {(each["utilization"], each["power_watts"], each["sm_mhz"]) for each in samples} == {(0.93, 350.0, 1980)}
    assert max(each["card_used_bytes"] for each in samples) > 32 << 20


@pytest.mark.thin(4)
def test_net_check_sums_over_two_gpus(tmp_path: Path) -> None:
    """The node stage would multiply real sizes, which takes a CPU minutes."""
    ended = run(tmp_path / "run", "net-check", "--nproc", "2", "--only", "all-reduce", devices=2)
    assert ended.exit_code == 0, ended.text[-4000:]
    assert "2 ranks sum known values by nccl" in ended.text
