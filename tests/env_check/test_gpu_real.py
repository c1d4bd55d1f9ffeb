"""The gpu group as whole processes: on this machine without a GPU, and with driver libraries compiled for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import Examine

from loradock.machine import Host

pytestmark = pytest.mark.thin(2)

HERE = Path(__file__).parent
BARE = {"CUDA_VISIBLE_DEVICES": None, "NVIDIA_VISIBLE_DEVICES": None, "KUBERNETES_SERVICE_HOST": None}
INSIDE = {**BARE, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}  # a container, whatever runs these tests


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an NVML and a CUDA driver library that know a T4, and answer few questions about it."""
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        source = HERE / "stub_driver.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", str(source), "-o", str(folder / name)], check=True)
    return folder


def test_without_a_gpu_and_without_a_promise_a_run_trains_on_the_cpu(examined: Examine) -> None:
    if Host().gpus()[0]:
        pytest.fail("this machine has a GPU: run these tests where there is none")
    seen = examined("--only", "gpu", env=BARE)
    assert (seen.exit_code, seen.one("gpus")["severity"]) == (0, "ok")
    assert {finding["check"] for finding in seen.content["findings"]} == {"gpus"}
    assert seen.content["gpus"] == []


def test_a_gpu_that_was_promised_and_is_not_there_is_refused(examined: Examine, faults: Any, tmp_path: Path) -> None:
    chosen = examined("--only", "gpus", env={**BARE, "CUDA_VISIBLE_DEVICES": "0"})
    one = chosen.one("gpus")
    faults.seen("CUDA_VISIBLE_DEVICES without a GPU", made="real", finding=one, check="gpus")
    injected = {**BARE, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "all"}
    every = examined("--only", "gpus", env=injected).one("gpus")
    faults.seen("container without --gpus", made="real", finding=every, check="gpus")
    assert every["severity"] == "warning"
    named = examined("--only", "gpus", env={**injected, "NVIDIA_VISIBLE_DEVICES": "GPU-513536b6"}).one("gpus")
    faults.seen("container without the GPU it was given", made="real", finding=named, check="gpus")
    config = tmp_path / "run.yaml"
    shutil.copytree(HERE.parents[1] / "src" / "loradock" / "demo", tmp_path / "demo")
    config.write_text((tmp_path / "demo" / "config.yaml").read_text() + "device: cuda\n")
    for needed in ("base", "train.jsonl", "heldout.jsonl"):
        os.rename(tmp_path / "demo" / needed, tmp_path / needed)
    asked = examined("--only", "gpus", "--config", str(config), env=BARE).one("gpus")
    faults.seen("device: cuda without a GPU", made="real", finding=asked, check="gpus")


def test_a_driver_that_answers_few_questions_breaks_no_check(examined: Examine, driver: Path) -> None:
    seen = examined("--only", "gpu", env={**BARE, "LD_LIBRARY_PATH": str(driver)})
    findings = seen.content["findings"]
    assert [(f["check"], f["what"]) for f in findings if f["severity"] != "ok"] == []
    assert {f["check"] for f in findings} >= {"gpus", "driver", "architecture", "ecc", "throttle", "nvlink", "pcie"}
    assert "1 x Tesla T4" in seen.one("gpus")["what"]
    assert "supports CUDA 12.4" in seen.one("driver")["what"]
    (gpu,) = seen.content["gpus"]
    assert (gpu["name"], gpu["memory_bytes"], gpu["capability"]) == ("Tesla T4", 15 << 30, [7, 5])
    assert (gpu["slowdowns"], gpu["power_default_watts"], gpu["is_ecc"], gpu["nvlinks"]) == (None, 70.0, None, [])


def test_faults_of_a_gpu_are_read_from_nvml_by_the_whole_process(examined: Examine, driver: Path, faults: Any) -> None:
    bad = {**INSIDE, "LD_LIBRARY_PATH": str(driver), "STUB_FAULTS": "throttle,power,memory,pcie,ecc,old"}
    seen = examined("--only", "gpu", env=bad)
    assert {f["check"] for f in seen.content["findings"] if f["severity"] != "ok"} == {
        "driver", "ecc", "throttle", "power", "gpu-memory", "pcie"
    }  # fmt: skip
    assert seen.exit_code == 71
    assert seen.one("ecc")["exit_code"] == 81
    assert seen.one("driver")["what"].startswith("driver 470.86 supports CUDA 11.4")
    assert "more than 25 % of the memory of GPU 0" in seen.one("gpu-memory")["what"]
    assert seen.content["measured"]["gpu-memory"] == {"held_gib": 4.0, "processes": 1.0}
    lost = examined("--only", "gpu", env={**bad, "STUB_FAULTS": "lost"})
    assert lost.exit_code == 81
    finding = lost.one("gpus")
    faults.seen("NVML: the GPU is lost", made="constructed", finding=finding, check="gpus", exit_code=81)
    assert examined("--only", "gpus", env={**bad, "STUB_FAULTS": "hangs"}).exit_code == 81
    broken = examined("--only", "gpu", env={**bad, "STUB_FAULTS": "init"})
    assert (broken.exit_code, broken.one("gpus")["severity"]) == (0, "ok")


def test_a_lost_gpu_hinders_only_a_run_that_would_use_it(examined: Examine, driver: Path, faults: Any) -> None:
    pair = {**INSIDE, "LD_LIBRARY_PATH": str(driver), "STUB_FAULTS": "pair"}
    assert examined("--only", "gpus", env=pair).exit_code == 81
    hidden = examined("--only", "gpu", env={**pair, "CUDA_VISIBLE_DEVICES": "0"})
    assert (hidden.exit_code, hidden.content["worst"]) == (0, "warning")
    finding = hidden.one("gpus")
    faults.seen("lost GPU that CUDA_VISIBLE_DEVICES leaves out", made="constructed", finding=finding, check="gpus")
    assert "1 GPU: 1 x Tesla T4" in {each["what"] for each in hidden.content["findings"]}


def test_a_gpu_that_a_cgroup_gives_to_others_or_without_memory_of_its_own_is_no_alarm(
    examined: Examine, driver: Path
) -> None:
    seen = examined("--only", "gpu", env={**BARE, "LD_LIBRARY_PATH": str(driver), "STUB_FAULTS": "denied"})
    assert (seen.exit_code, seen.content["worst"]) == (0, "ok")
    assert "none of them assigned to this process" in seen.one("gpus")["what"]
    unified = examined("--only", "gpu", env={**BARE, "LD_LIBRARY_PATH": str(driver), "STUB_FAULTS": "unified"})
    assert (unified.exit_code, unified.content["worst"]) == (0, "ok")
    (gpu,) = unified.content["facts"]["gpus"]
    assert gpu["memory_bytes"] == Host().memory_bytes()
    assert unified.content["gpus"][0]["memory_bytes"] is None


def test_two_looks_at_this_machine_agree_and_cost_little(examined: Examine) -> None:
    first, second = (examined("--only", "gpu", "--level", "quick", env=BARE).content["findings"] for _ in range(2))
    assert first == second
    script = "import sys; from loradock.env_check import gpu; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
