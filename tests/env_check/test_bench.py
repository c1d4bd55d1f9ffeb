"""The bench group: measured on this machine for real, judged by what is published of GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import Examine, namespace
from facts.gpu_hosts import GpuHost

from loradock.env_check.base import Finding
from loradock.env_check.bench import disk
from loradock.env_check.gpu_state import suspects
from loradock.env_check.known import peak
from loradock.env_check.seen import meanwhile, own_cards
from loradock.env_check.speeds import judge, medians
from loradock.machine.answers import DriverState, GpuState
from loradock.machine.probe import gather


def as_json(check: str, finding: Finding) -> dict[str, Any]:
    return {"check": check, **{key: getattr(finding, key) for key in ("severity", "what", "remedy", "exit_code")}}


@pytest.mark.thin(4)
def test_this_machine_is_measured_without_a_published_figure(examined: Examine, tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": None, "LORADOCK_CACHE": str(tmp_path / "not" / "made" / "yet")}
    seen = examined("--only", "bench", cwd=tmp_path, env=environ)
    assert {finding["severity"] for finding in seen.content["findings"]} == {"ok"}
    assert {finding["check"] for finding in seen.content["findings"]} == {"gemm", "memory-bandwidth", "disk"}
    measured = seen.content["measured"]
    assert 0.001 < measured["gemm"]["float32_tflops"] < 50
    assert 0.5 < measured["memory-bandwidth"]["copy_gb_per_second"] < 5000
    assert set(measured["disk"]) == {
        f"{role}_{way}_mb_per_second" for role in ("output", "cache") for way in ("write", "read")
    }
    assert all(rate > 1 for rate in measured["disk"].values())
    assert sum(seen.content["seconds"].values()) < 150, "5 s where nobody else computes"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_or_read_only_ends_as_a_run_would(examined: Examine, faults: Any, tmp_path: Path) -> None:
    small = namespace(f"mount -t tmpfs -o size=8m none {tmp_path}")
    full = examined("--only", "disk", within=small, env={"LORADOCK_CACHE": str(tmp_path)}, cwd=Path("/tmp"))
    faults.seen("no space to measure the disk", made="real", finding=full.one("disk"), check="disk", exit_code=73)
    closed = namespace(f"mount -t tmpfs -o ro none {tmp_path}")
    refused = examined("--only", "disk", within=closed, env={"LORADOCK_CACHE": str(tmp_path)}, cwd=Path("/tmp"))
    faults.seen("disk to measure is read-only", made="real", finding=refused.one("disk"), check="disk", exit_code=77)


def test_a_slow_disk_is_named_by_its_role(faults: Any) -> None:
    rates = {"output_write_mb_per_second": 9.0, "output_read_mb_per_second": 80.0, "cache_write_mb_per_second": 500.0}
    finding = disk.judge(rates)
    assert finding.what.startswith("output:")
    faults.seen("slow disk", made="constructed", finding=as_json("disk", finding), check="disk")
    assert disk.judge({**rates, "output_write_mb_per_second": 40.0}).severity == "ok"


SLOW = [
    ("slow matrix products", "gemm", "Tesla V100-SXM2-32GB", {"fp16_tflops": 29.0}, "tflops", "v100-power-brake", {}),
    (
        "slow GPU memory",
        "memory-bandwidth",
        "NVIDIA GeForce RTX 3090",
        {"copy_gb_per_second": 400.0},
        "memory",
        "rtx-3080-in-use",
        {},
    ),
    (
        "slow transfers to the GPU",
        "host-to-device",
        "NVIDIA A100-SXM4-40GB",
        {"to_device_gb_per_second": 1.6, "to_host_gb_per_second": 1.5},
        "pcie",
        "a100-pair",
        {"pcie_width": 1},
    ),
]


@pytest.mark.parametrize(("fault", "check", "gpu", "rates", "figure", "key", "change"), SLOW)
def test_a_slow_gpu_is_told_with_its_likely_cause(
    fault: str, check: str, gpu: str, rates: dict[str, float], figure: str, key: str, change: Any, faults: Any
) -> None:
    known = peak(gpu)
    assert known
    host = GpuHost(key, change=change)
    asked: dict[str, Any] = {"subject": gpu, "peak": known, "published": getattr(known, figure)}
    finding = judge(check, rates, **asked, gpu=host.gpu_states()[0])
    faults.seen(fault, made="constructed", finding=as_json(check, finding), check=check)
    assert finding.measured["gpu0_fraction"] < known.floors[check]
    assert any(cause in finding.what for cause in ("throttled", "another process", "PCIe x1 of x16"))
    healthy = judge(check, dict.fromkeys(rates, 0.9 * float(asked["published"])), **asked)
    assert healthy.severity == "ok"


class Measured(GpuHost):
    """A host whose GPUs fill up with our own buffers after the first look."""

    def nvml(self, *, afresh: bool = False) -> tuple[tuple[GpuState, ...], DriverState]:
        states, driver = super().nvml()
        return tuple(replace(each, used_bytes=30 << 30) if afresh else each for each in states), driver


def test_our_own_buffers_are_no_other_process() -> None:
    host = Measured("a100-pair")
    assert [list(suspects(meanwhile(host, gpu))) for gpu in own_cards(host, gather(host)).values()] == [[], []]
    in_use = Measured("a100-pair", change={"used_bytes": 9 << 30})
    first, _ = own_cards(in_use, gather(in_use)).values()
    assert list(suspects(meanwhile(in_use, first))) == ["another process is on the GPU"]


def test_every_gpu_of_this_process_is_measured_under_its_own_name() -> None:
    turned = GpuHost("a100-pair", environ={"CUDA_VISIBLE_DEVICES": "1,0"})
    gpus = own_cards(turned, gather(turned))
    assert [(number, gpu.index) for number, gpu in gpus.items()] == [(0, 1), (1, 0)]
    of_two = GpuHost("a100-pair", environ={"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"})
    assert [gpu.index for gpu in own_cards(of_two, gather(of_two)).values()] == [1]
    known = peak("NVIDIA A100-SXM4-40GB")
    findings = [
        judge("gemm", {"bf16_tflops": 30.0}, subject=gpu.label, peak=known, published=312.0, gpu=gpu)
        for gpu in gpus.values()
    ]
    assert [set(each.measured) for each in findings] == [
        {"gpu1_bf16_tflops", "gpu1_fraction"},
        {"gpu0_bf16_tflops", "gpu0_fraction"},
    ]
    assert findings[0].remedy == "nvidia-smi -q -i 1 -d PERFORMANCE,CLOCK,POWER,PIDS"


def test_the_text_holds_no_figure_that_differs_from_run_to_run() -> None:
    known = peak("NVIDIA A10")
    assert known
    texts = {
        judge("gemm", {"bf16_tflops": rate}, subject="A10", peak=known, published=125.0).what for rate in (80.1, 80.2)
    }
    assert len(texts) == 1


def test_work_is_done_in_turns_and_a_disturbed_round_does_not_count() -> None:
    calls: list[str] = []
    seconds = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, settle=lambda: None)
    assert "".join(calls) == "ab" * 6
    assert set(seconds) == {"a", "b"}
