"""`deterministic: portable`: a CPU with AVX-512 computes what one with AVX2 alone does, to the bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from proven import unchecked

from loradock import demo
from loradock.commands.train import deterministic
from loradock.errors import EnvironmentUnfit
from loradock.facts import Facts
from loradock.machine import Host, probe
from loradock.machine.library_variables import PORTABLE
from loradock.training.inputs import moved

RUN = ("--batch-size", "8", "--max-steps", "12", "--lr", "1e-2", "--output", "out")
RECORDED = "ddacbabba936dd885f990486c611b3d7a85773ac02aebb1ee1fff5173a09fc54"
KERNELS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR")


def adapter(folder: Path, *settings: str, model: Path, data: Path, **environment: str) -> bytes:
    folder.mkdir()
    words = ["train", "--model", str(model), "--data", str(data), *RUN, *settings, unchecked("its bits")]
    known = {name: value for name, value in os.environ.items() if name not in KERNELS}
    known |= {"LORADOCK_CACHE": str(folder.parent / "cache"), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-m", "loradock", *words]
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return (folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.thin(6)
def test_portable_gives_the_bits_of_a_cpu_without_avx512(tmp_path: Path, llama: Path, rows: Path) -> None:
    pinned = ("--set", "deterministic=portable")
    portable = adapter(tmp_path / "portable", *pinned, model=llama, data=rows, ATEN_CPU_CAPABILITY="avx512")
    assert portable == adapter(tmp_path / "avx2", model=llama, data=rows, **PORTABLE)
    if probe.instruction_set(Host()) == "x86-64-v4":
        assert portable != adapter(tmp_path / "free", model=llama, data=rows), "else this test shows nothing"


@pytest.mark.full
def test_portable_gives_the_bits_that_another_machine_recorded(tmp_path: Path) -> None:
    """Recorded on an AMD EPYC with AVX-512 (2 MiB L2 for 2 CPUs, 32 MiB L3), torch 2.10, one thread."""
    base = Path(demo.__file__).parent / "base"
    found = adapter(
        tmp_path / "here", "--set", "deterministic=portable", model=base, data=base.with_name("train.jsonl")
    )
    assert hashlib.sha256(found).hexdigest() == RECORDED


def test_a_cpu_without_avx2_cannot_be_portable() -> None:
    with pytest.raises(EnvironmentUnfit, match="AVX2"):
        deterministic("portable", cpu="x86-64-v2")
    assert deterministic(True, cpu="x86-64-v2").keys() == {"CUBLAS_WORKSPACE_CONFIG"}
    assert deterministic(False, cpu="x86-64-v2") == {}


def test_a_run_that_goes_on_on_another_cpu_is_told() -> None:
    now = Facts(platform="", python="", cpus=4, memory_bytes=1, in_container=False, instruction_set="x86-64-v3")
    first, second = moved({"instruction_set": "x86-64-v4", "cpus": 2}, now)
    assert "began on x86-64-v4, and continues on x86-64-v3" in first
    assert "began with 2 CPUs, and continues with 4" in second
    assert list(moved({"instruction_set": "x86-64-v3", "cpus": 4}, now)) == []
    assert list(moved({}, now)) == []
