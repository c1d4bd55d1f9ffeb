"""The machine's ceilings, measured for real on shapes that take no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.floor.rates import NF4_BITS, Device, dequantise, rate

ROOT = Path(__file__).parents[2]


def test_a_rate_is_the_amount_over_the_seconds_of_a_round() -> None:
    assert rate(10.0, [5.0, 1.0, 2.0]) == {"min": 2.0, "median": 5.0, "max": 10.0}


def test_dequantising_counts_four_bits_read_and_a_whole_value_written_a_weight() -> None:
    assert 4.12 < NF4_BITS < 4.13
    found = dequantise(Device.of("cpu"), inputs=64, outputs=128, seconds=0.01)
    assert 0 < found["min"] <= found["max"]


@pytest.mark.full
def test_the_ceilings_of_a_cpu_are_measured_and_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.floor", "--device", "cpu", "--seconds", "0.3", "--tokens", "16"]
    subprocess.run([*command, "--shrink", "64", "--results", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (file,) = tmp_path.glob("*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    rates = record["rates"]
    assert rates["shapes"]["gate"] == [64, 224]
    spans = [by["16"] for by in rates["product_flops"].values()] + [rates["copy_bytes"], rates["dequantise_bytes"]]
    assert all(0 < each["min"] <= each["median"] <= each["max"] for each in spans)
    assert rates["ceiling_flops"] == rates["product_flops"]["gate"]["16"]["median"]
    assert record["machine"]["stack"]["torch"]
    assert "GB/s" in file.with_suffix(".md").read_text(encoding="utf-8")
