"""The machine's ceilings, measured for real on shapes that take no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
