"""Nodes compared: this machine's own JSON, and copies of it that were edited as another node would be."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from facts.gpu_hosts import GpuHost
from facts.recorded import config

from loradock.env_check.base import Intent
from loradock.env_check.compare import compare
from loradock.env_check.examination import FORMAT
from loradock.env_check.node import node
from loradock.env_check.reference import schema
from loradock.machine import probe

pytestmark = pytest.mark.thin(1)


def env_check(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loradock", "env-check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this machine prints at the bench level."""
    file = tmp_path_factory.mktemp("nodes") / "here.json"
    file.write_text(env_check("--only", "memory-bandwidth", "--json").stdout)
    return file


def edited(file: Path, name: str, *, rate: float = 1.0, **identity: Any) -> Path:
    """The JSON of another node: this one's, with another name, identity, and rates times this."""
    content = json.loads(file.read_text())
    content["node"].update(identity, name=name)
    figures = content["measured"]["memory-bandwidth"]
    content["measured"]["memory-bandwidth"] = {key: rate * value for key, value in figures.items()}
    other = file.with_name(f"{name}.json")
    other.write_text(json.dumps(content))
    return other


@pytest.mark.thin(4)
def test_what_differs_comes_first_and_then_who_is_slow(here: Path) -> None:
    # Ten times slower than this machine was, so that no noise of it counts; two nodes alike, so that it is the outlier.
    slow = edited(here, "node-slow", rate=0.1, driver="535.104.05", lock_sha256="ab" * 32)
    done = env_check("--only", "memory-bandwidth", "--json", "--compare", slow, edited(here, "node-same"))
    content = json.loads(done.stdout)
    jsonschema.validate(content, schema())
    found = {each["subject"]: each for each in content["comparison"]}
    assert list(found)[:2] == ["driver", "lock_sha256"]
    assert "535.104.05 on node-slow" in found["driver"]["what"]
    rates = [each for each in content["comparison"] if each["subject"] == "memory-bandwidth copy_gb_per_second"]
    outlier = next(each for each in rates if each["severity"] == "warning" and "node-slow" in each["what"])
    assert re.match(r"node-slow is \d\d% below the median of 3 nodes; likely: ", outlier["what"])
    text = env_check("--only", "memory-bandwidth", "--compare", slow, "--compare", here).stdout
    assert "WARNING driver" in text
    assert text.index("WARNING driver") < text.index("node-slow is")


def test_a_file_that_is_none_of_ours_is_refused_before_anything_is_measured(here: Path, tmp_path: Path) -> None:
    text, foreign, old, cut, odd = (tmp_path / f"{name}.json" for name in ("text", "foreign", "old", "cut", "odd"))
    text.write_text("driver: 570\n")
    foreign.write_text('{"findings": []}')
    old.write_text('{"format": "loradock.env-check/0"}')
    cut.write_text(json.dumps({"format": FORMAT, "node": {"name": "x"}, "gpus": []}))
    odd.write_text(json.dumps({"format": FORMAT, "node": {"name": "x"}, "gpus": [1], "measured": {}}))
    done = env_check("--compare", here, text, foreign, old, cut, odd)
    assert (done.returncode, done.stdout) == (65, "")
    for words in (
        "text.json: not JSON",
        "foreign.json: not what env-check",
        "old.json: its format is",
        "missing: measured",
        'odd.json: "gpus" is not a list',
    ):
        assert words in done.stderr
    assert "hint: on each node: loradock env-check --level bench --json > NODE.json" in done.stderr
    missing = env_check("--compare", tmp_path / "none.json")
    assert (missing.returncode, "none.json: No such file" in missing.stderr) == (66, True)
    assert env_check(here).returncode == 64


def of(key: str, name: str, *, tflops: float, change: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What the node with these GPUs would print."""
    host = GpuHost(key, change=change, **more)
    host.files["/proc/sys/kernel/hostname"] = f"{name}\n"
    facts, plan = probe.gather(host), Intent(output=Path("o"), cache=Path("c"), scratch=Path("s"), config=config())
    return {
        "node": asdict(node(host, facts, plan)),
        "gpus": [asdict(gpu) for gpu in host.gpu_states()],
        "measured": {"gemm": {"bf16_tflops": tflops}, "host-to-device": {"to_device_gb_per_second": 24.0}},
    }


BRAKE = {"slowdowns": ("HW Slowdown", "HW Power Brake Slowdown")}
CAUSES = [
    (BRAKE, "throttled: HW Power Brake Slowdown"),
    ({"uncorrected_volatile": 3}, "ECC errors"),
    ({"pcie_width": 4}, "PCIe x4 of x16"),
    ({"power_enforced_watts": 250.0}, "power limited to 250 of 400 W"),
    ({"used_bytes": 20 << 30}, "another process is on the GPU"),
    ({"sm_application_mhz": 900}, "clocks set to 900 of 1095 MHz"),
    ({}, "other load on the node"),
]


@pytest.mark.parametrize(("change", "cause"), CAUSES)
def test_a_slow_node_is_told_with_what_its_gpus_tell(change: dict[str, Any], cause: str) -> None:
    fast = [of("a100-pair", f"node-{number}", tflops=250.0 + number) for number in range(3)]
    slow = of("a100-pair", "node-slow", tflops=225.0, change=change)
    outliers = [each for each in compare([*fast, slow]) if each.subject.startswith("gemm")]
    assert [each.severity for each in outliers] == ["warning"]
    assert outliers[0].what.startswith("node-slow is 10% below the median of 4 nodes")
    assert cause in outliers[0].what
    assert outliers[0].remedy == "ssh node-slow loradock env-check --only gpu,bench"


def test_a_cause_that_all_nodes_share_is_none() -> None:
    every = [
        of("a100-pair", f"node-{number}", tflops=rate, change=BRAKE) for number, rate in enumerate((250, 250, 220))
    ]
    (outlier,) = (each for each in compare(every) if each.subject.startswith("gemm"))
    assert "throttled" not in outlier.what


def test_of_two_nodes_the_slower_one_is_the_outlier_and_five_per_cent_are_none() -> None:
    first = of("a100-pair", "node-a", tflops=250.0)
    for rate, severities in ((238.0, []), (236.0, ["warning"])):
        found = compare([first, of("a100-pair", "node-b", tflops=rate)])
        assert [each.severity for each in found if each.subject.startswith("gemm")] == severities
    (same,) = compare([first, copy.deepcopy(first)])
    assert (same.severity, same.subject) == ("ok", "all")


def test_a_fast_node_is_worth_a_word() -> None:
    nodes = [of("a100-pair", f"node-{number}", tflops=rate) for number, rate in enumerate((250.0, 250.0, 300.0))]
    (outlier,) = compare(nodes)
    assert (outlier.severity, outlier.remedy) == ("ok", "")
    assert "node-2 is 20% above" in outlier.what


def test_images_configurations_gpus_clocks_and_power_are_compared() -> None:
    first = of("a100-pair", "node-a", tflops=250.0, environ={"LORADOCK_IMAGE_DIGEST": "sha256:" + "1" * 64})
    change = {"power_enforced_watts": 300.0, "sm_application_mhz": 1000, "name": "NVIDIA A100-PCIE-40GB"}
    second = of("a100-pair", "node-b", tflops=250.0, change=change)
    second["node"]["config_sha256"] = "2" * 64
    found = {each.subject: each for each in compare([first, second])}
    assert list(found) == ["image_digest", "config_sha256", "gpus", "clocks", "power limits"]
    assert found["image_digest"].what == "sha256:11111... on node-a; none on node-b"
    assert all(each.severity == "warning" and each.remedy for each in found.values())


def test_values_that_begin_alike_differ_all_the_same() -> None:
    first, second = (of("a100-pair", f"node-{name}", tflops=250.0) for name in "ab")
    for each, last in ((first, "1"), (second, "2")):
        each["node"]["image_digest"] = f"sha256:{'0' * 63}{last}"
        each["node"]["kernel"] = f"Linux-6.8.0-52-generic-x86_64-with-glibc2.39-and-a-long-name-of-build-{last}"
    found = {each.subject: each for each in compare([first, second])}
    assert list(found) == ["image_digest", "kernel"]
    assert found["image_digest"].what == f"sha256:{'0' * 63}1 on node-a; sha256:{'0' * 63}2 on node-b"


def test_no_node_is_lost_where_names_and_files_are_the_same() -> None:
    nodes = [{**of("a100-pair", "gpu", tflops=rate), "file": "a/node.json"} for rate in (250.0, 250.0, 250.0, 100.0)]
    nodes[2]["file"] = "b/node.json"
    (slow,) = compare(nodes)
    assert slow.what.startswith("gpu (a/node.json) #4 is 60% below the median of 4 nodes")
    assert slow.remedy == "ssh gpu loradock env-check --only gpu,bench"


def test_of_a_slow_gpu_its_own_state_is_told_and_not_that_of_its_sister() -> None:
    nodes = [
        of("a100-pair", f"node-{number}", tflops=250.0, change=BRAKE if number == 2 else None) for number in range(3)
    ]
    for number, each in enumerate(nodes):
        rates = {f"gpu{gpu}_bf16_tflops": 200.0 if number == 2 else 250.0 for gpu in (0, 1)}
        each["measured"] = {"gemm": rates}
    found = {each.subject: each.what for each in compare(nodes)}
    assert "throttled: HW Power Brake Slowdown" in found["gemm gpu0_bf16_tflops"]
    assert "other load on the node" in found["gemm gpu1_bf16_tflops"]
