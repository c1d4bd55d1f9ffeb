"""The gpu group: on hosts recorded in public, on this machine for real, and through a driver library of our own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from facts.gpu_hosts import VIRTUAL, GpuHost, recorded
from facts.recorded import config
from facts.recorded import gpus as known_gpus

from loradock.config.schema import RunConfig
from loradock.env_check.base import Finding, Intent
from loradock.env_check.gpu import CHECKS as GPU_CHECKS
from loradock.env_check.known import Runtime, peak, runtime, table, xids
from loradock.machine import Host, probe
from loradock.machine.answers import GpuProcess
from loradock.machine.gpus import module_version

pytestmark = pytest.mark.thin(2)

ROOT = Path(__file__).parents[2]
CHECKS = {check.name: check for check in GPU_CHECKS}


def intent(run: RunConfig | None = None) -> Intent:
    return Intent(output=Path("runs"), cache=Path("cache"), scratch=Path("/tmp"), config=run)


def found(host: Host, *, run: RunConfig | None = None) -> dict[str, list[Finding]]:
    """What each check of the group that applies finds on this host, as the runner would ask them."""
    facts, plan = probe.gather(host), intent(run)
    return {check.name: list(check.look(host, facts, plan)) for check in GPU_CHECKS if check.applies(facts, plan)}


def as_json(name: str, finding: Finding) -> dict[str, Any]:
    return {"check": name, **{key: getattr(finding, key) for key in ("severity", "what", "remedy", "exit_code")}}


def wrong(host: Host, *, run: RunConfig | None = None) -> list[str]:
    return [name for name, findings in found(host, run=run).items() if any(f.severity != "ok" for f in findings)]


def torchrun(processes: int) -> dict[str, str]:
    return {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "RANK": "0", "LOCAL_RANK": "0"}


A_PROCESS = {"used_bytes": 9 << 30, "processes": (GpuProcess(pid=4711, used_bytes=9 << 30),)}
UNLIKE = {"name": "NVIDIA L4", "nvlinks": ()}
LINKS_DOWN = {"nvlinks": (True,) * 10 + (False,) * 2}
FAULTS = [
    ("driver for CUDA 11", "driver", 71, "t4-old-driver", {}),
    ("kernel module and NVML library differ", "gpus", 71, "mismatch", {}),
    ("container lost its access to the GPUs", "gpus", 71, "lost-access", {}),
    ("GPU fell off the bus", "gpus", 81, "gpu-lost", {}),
    ("GPU older than the wheel's kernels", "architecture", 71, "gtx-1080-ti", {}),
    ("four processes on MIG instances", "mig", 71, "a100-mig", {"environ": torchrun(4)}),
    ("power brake", "throttle", 71, "v100-power-brake", {}),
    ("memory row to be remapped", "ecc", 81, "a100-remap-pending", {}),
    ("PCIe x8 of x16", "pcie", 71, "rtx-2080-x8", {}),
    ("another process holds the GPU", "gpu-memory", 71, "rtx-3080-in-use", {}),
    ("NVLinks down", "nvlink", 71, "v100-nvlink", {}),
    ("Xid in the kernel's log", "xid", 71, "xid-109", {}),
    ("uncorrected memory errors", "ecc", 81, "a100-pair", {"change": {"uncorrected_volatile": 2}}),
    ("row that could not be remapped", "ecc", 81, "a100-pair", {"change": {"has_remap_failed": True}}),
    ("memory page to be retired", "ecc", 81, "a100-pair", {"change": {"has_retirement_pending": True}}),
    ("GPU too hot", "throttle", 71, "a100-pair", {"change": {"slowdowns": ("SW Thermal Slowdown",)}}),
    ("lowered application clocks", "clocks", 71, "a100-pair", {"change": {"sm_application_mhz": 900}}),
    ("lowered power limit", "power", 71, "a100-pair", {"change": {"power_enforced_watts": 250.0}}),
    ("a process on the GPU", "gpu-memory", 71, "a100-pair", {"change": A_PROCESS}),
    ("PCIe x1", "pcie", 71, "a100-pair", {"change": {"pcie_width": 1}}),
    (
        "CUDA_VISIBLE_DEVICES names a GPU too many",
        "visible",
        71,
        "a100-pair",
        {"environ": {"CUDA_VISIBLE_DEVICES": "0,1,2"}},
    ),
    (
        "CUDA_VISIBLE_DEVICES names no GPU of several",
        "gpus",
        71,
        "a100-pair",
        {"environ": {"CUDA_VISIBLE_DEVICES": "5"}},
    ),
    ("more processes than GPUs", "visible", 71, "a100-pair", {"environ": torchrun(3)}),
    (
        "CUDA_VISIBLE_DEVICES names a GPU twice",
        "gpus",
        71,
        "a100-pair",
        {"environ": {"CUDA_VISIBLE_DEVICES": "0,0"}},
    ),
    (
        "unlike GPUs in the order of their speed",
        "visible",
        71,
        "a100-pair",
        {"change": UNLIKE, "environ": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}},
    ),
    (
        "NVLinks down behind a switch",
        "nvlink",
        71,
        "a100-pair",
        {"change": LINKS_DOWN, "files": {"/dev/nvidia-nvswitch0": ""}},
    ),
    ("MIG mode without an instance", "gpus", 71, "a10-healthy", {"change": {"is_mig": True}}),
    ("one of two GPUs in MIG mode", "mig", 71, "a100-pair", {"change": {"is_mig": True}}),
    ("MIG mode at the next reset", "mig", 71, "a100-pair", {"change": {"is_mig_pending": True}}),
    (
        "libcuda.so.1 not in the container",
        "driver",
        71,
        "a10-healthy",
        {"driver": {"cuda": None, "cuda_failure": "libcuda.so.1: cannot open shared object file"}},
    ),
    (
        "libcuda.so.1 of another driver",
        "driver",
        71,
        "a10-healthy",
        {"driver": {"cuda_library": "/usr/lib/libcuda.so.535.104.05"}},
    ),
    (
        "compatibility library on a GeForce GPU",
        "driver",
        71,
        "rtx-3080-in-use",
        {"driver": {"cuda_library": "/usr/local/cuda-12.8/compat/libcuda.so.570.124.06", "cuda": 12080}},
    ),
    (
        "driver installed, module not loaded",
        "gpus",
        71,
        "mismatch",
        {"driver": {"module": None, "nvml_failure": "Driver Not Loaded", "devices": ("0000:01:00.0",)}},
    ),
]


@pytest.mark.parametrize(("fault", "check", "exit_code", "key", "how"), FAULTS, ids=[each[0] for each in FAULTS])
def test_a_host_with_the_fault_is_told_from_a_healthy_one(
    fault: str, check: str, exit_code: int, key: str, how: dict[str, Any], faults: Any
) -> None:
    host = GpuHost(key, **how)
    findings = found(host)
    worst = max(findings[check], key=lambda each: ("ok", "warning", "error").index(each.severity))
    faults.seen(fault, made=host.made, finding=as_json(check, worst), check=check, exit_code=exit_code)
    assert "\n" not in worst.what


UNKNOWN: tuple[str, ...] = ("name", "uuid", "capability", "memory_bytes", "used_bytes")
LOST: dict[str, Any] = {**dict.fromkeys(UNKNOWN), "failure": "GPU is lost", "nvlinks": ()}
ALONE = [each for each in FAULTS if each[0] not in ("driver for CUDA 11", "compatibility library on a GeForce GPU")]


@pytest.mark.parametrize(("fault", "check", "exit_code", "key", "how"), ALONE, ids=[each[0] for each in ALONE])
def test_a_fault_is_found_by_its_own_check_alone(
    fault: str, check: str, exit_code: int, key: str, how: dict[str, Any]
) -> None:
    assert wrong(GpuHost(key, **how)) == [check]


def test_healthy_hosts_raise_no_alarm() -> None:
    for key in ("a10-healthy", "l40s-healthy", "h200-healthy"):
        assert wrong(GpuHost(key)) == []
    assert wrong(GpuHost("a100-pair", environ=torchrun(2))) == []
    assert wrong(GpuHost("a100-mig")) == []
    assert wrong(GpuHost("a100-pair", environ={"CUDA_VISIBLE_DEVICES": "GPU-00000002"})) == []
    # A T4 of AWS: half a link is how the provider wired it, and its default clocks lie far below its maximum.
    assert wrong(GpuHost("t4-old-driver", driver={"cuda": 12040}, change={"used_bytes": 0})) == []


def test_a_fault_of_a_gpu_that_this_process_does_not_use_is_no_alarm() -> None:
    broken = {"uncorrected_volatile": 2, "power_enforced_watts": 100.0}
    assert wrong(GpuHost("a100-pair", change=broken, environ={"CUDA_VISIBLE_DEVICES": "1"})) == []
    assert wrong(GpuHost("a100-pair", change=A_PROCESS, environ={**torchrun(2), "LOCAL_RANK": "1"})) == []


def test_a_lost_gpu_that_is_hidden_leaves_the_others_their_numbers() -> None:
    host = GpuHost("a100-pair", environ={"CUDA_VISIBLE_DEVICES": "1"}, change=LOST)
    assert [gpu.name for gpu in host.gpus()[0]] == ["NVIDIA A100-SXM4-40GB"]
    assert [finding.severity for finding in found(host)["gpus"]] == ["ok", "warning"]
    assert wrong(GpuHost("a100-pair", environ={"CUDA_VISIBLE_DEVICES": "0,1"}, change=LOST))[0] == "gpus"


def test_gpus_that_a_cgroup_gives_to_others_are_neither_counted_nor_judged() -> None:
    others = {**LOST, "failure": "Insufficient Permissions", "is_permitted": False}
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        host = GpuHost("a100-pair", environ=environ, change=others)
        assert wrong(host) == []
        assert [gpu.index for gpu in host.chosen_states()] == [1]
    none = GpuHost("a10-healthy", change=others)
    assert wrong(none) == []
    asked = found(none, run=config(device="cuda"))["gpus"][0]
    assert (asked.exit_code, asked.remedy) == (71, "srun --gpus 1 loradock train ...")


def test_a_desktop_on_the_gpu_is_no_alarm() -> None:
    desktop = {"memory_bytes": 12 << 30, "used_bytes": 700 << 20, "processes": (GpuProcess(pid=812),)}
    assert wrong(GpuHost("a100-pair", change=desktop)) == []
    texts = {
        found(GpuHost("a100-pair", change={"used_bytes": used << 20}))["gpu-memory"][0].what for used in (9000, 9500)
    }
    assert texts == {"other processes hold more than 5 % of the memory of GPU 0 (NVIDIA A100-SXM4-40GB)"}


def test_an_order_of_the_users_own_or_a_uuid_is_no_alarm() -> None:
    both = "GPU-00000002-0000-0000-0000-000000000000,GPU-00000001"
    for environ in (
        {},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_VISIBLE_DEVICES": "1,0"},
        {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": both},
    ):
        assert wrong(GpuHost("a100-pair", change=UNLIKE, environ=environ)) == []
    turned = GpuHost("a100-pair", change=UNLIKE, environ={"CUDA_VISIBLE_DEVICES": "1,0"})
    assert [gpu.index for gpu in turned.chosen_states()] == [1, 0]
    assert turned.gpus()[0][1].name == "NVIDIA L4"


def test_links_are_judged_by_what_the_machine_can_have() -> None:
    def links(**how: Any) -> list[Finding]:
        return found(GpuHost("a100-pair", change=LINKS_DOWN, **how))["nvlink"]

    virtual, switch = {"/proc/cpuinfo": VIRTUAL}, {"/dev/nvidia-nvswitch0": ""}
    assert links()[0].remedy == "nvidia-smi nvlink --status -i 0"
    assert links(files=switch)[0].remedy.startswith("sudo systemctl restart nvidia-fabricmanager")
    assert links(files=virtual)[0].severity == "ok"
    assert links(files={**virtual, **switch})[0].severity == "warning"


def test_what_takes_root_on_the_machine_is_not_typed_in_a_container() -> None:
    inside = {"/.dockerenv": ""}
    old = found(GpuHost("t4-old-driver", files=inside))["driver"][0]
    assert old.remedy == "ssh HOST 'sudo apt-get install nvidia-driver-570-server && sudo reboot'"
    for _, check, _, key, how in FAULTS:
        for finding in found(GpuHost(key, **{**how, "files": {**how.get("files", {}), **inside}})).get(check, []):
            assert "sudo" not in finding.remedy.partition("ssh HOST ")[0], (check, finding)
            assert not re.search("apt-get|reboot|modprobe", finding.remedy.partition("ssh HOST ")[0]), (check, finding)


def test_a_gpu_that_is_served_is_named_beside_one_that_is_not() -> None:
    mixed = GpuHost("a100-pair", change={"name": "NVIDIA GeForce GT 1030", "capability": (6, 1), "nvlinks": ()})
    assert found(mixed)["architecture"][0].remedy == "export CUDA_VISIBLE_DEVICES=1"
    mixed.variables = {"CUDA_VISIBLE_DEVICES": "1, 0"}
    assert found(mixed)["architecture"][0].remedy == "export CUDA_VISIBLE_DEVICES=1"


def test_a_slice_or_a_variant_of_a_gpu_has_no_figures_of_the_whole() -> None:
    for name in (
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 SUPER",
        "NVIDIA A10-24Q",
        "GRID T4-16C",
    ):
        assert peak(name) is None, name
    assert peak("NVIDIA GeForce RTX 2080 Ti")


def test_an_ok_finding_names_no_suspect() -> None:
    suspects = re.compile(r"[A-Z]+_[A-Z_]+|lib\w+\.so|Xid|MIG mode", re.ASCII)
    for key in ("a10-healthy", "l40s-healthy", "h200-healthy", "a100-pair", "a100-mig"):
        for findings in found(GpuHost(key)).values():
            assert not [f.what for f in findings if suspects.search(f.what)]


@pytest.mark.parametrize(
    ("key", "library", "severity"),
    [
        ("a100-pair", "/usr/lib/libcuda.so.570.86.10", "ok"),
        ("a100-pair", "/usr/local/cuda/compat/libcuda.so.575.51.03", "ok"),
        ("a100-pair", "/usr/local/cuda/compat/libcuda.so.550.54.14", "error"),
        ("rtx-3080-in-use", "/usr/local/cuda/compat/libcuda.so.600.10", "error"),
        ("a100-pair", "/opt/conda/cuda-compat/libcuda.so.575.51.03", "ok"),
        ("rtx-3080-in-use", "/opt/conda/cuda-compat/libcuda.so.600.10", "error"),
        ("a100-pair", "/usr/lib/wsl/lib/libcuda.so.1", "ok"),
    ],
)
def test_a_compatibility_library_is_for_older_drivers_of_data_centre_gpus(
    key: str, library: str, severity: str
) -> None:
    host = GpuHost(key, driver={"cuda_library": library})
    assert found(host)["driver"][0].severity == severity


def test_what_is_told_is_the_same_on_two_looks() -> None:
    for _, _, _, key, how in FAULTS[:12]:
        first, second = found(GpuHost(key, **how)), found(GpuHost(key, **how))
        assert first == second


def test_gpus_are_refused_or_hidden_only_when_asked_to() -> None:
    cpu, gpu = config(device="cpu"), config(device="cuda")
    assert found(GpuHost("mismatch"), run=cpu)["gpus"][0].severity == "ok"
    hidden = GpuHost("a100-pair", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert found(hidden)["gpus"][0].severity == "ok"
    assert found(hidden, run=gpu)["gpus"][0].exit_code == 71


def test_a_divided_gpu_counts_as_its_first_instance() -> None:
    gpus, _ = GpuHost("a100-mig").gpus()
    assert [(gpu.memory_bytes >> 20, gpu.capability) for gpu in gpus] == [(19968, (8, 0))]
    chosen, _ = GpuHost("a100-mig", environ={"CUDA_VISIBLE_DEVICES": "MIG-2"}).gpus()
    assert len(chosen) == 1


def test_every_gpu_that_the_wheel_has_kernels_for_is_served_and_no_other() -> None:
    served = [key for key, gpu in known_gpus().items() if runtime().serves(gpu.capability)]
    assert served == list(known_gpus())
    for capability in ((3, 7), (5, 2), (6, 0), (6, 1), (11, 0), (13, 0)):
        assert not runtime().serves(capability)
    older = Runtime(cuda="12.8", architectures=((8, 6), (9, 0)), driver_cuda=12000, driver="525.60.13")
    assert [older.serves(capability) for capability in ((8, 0), (8, 6), (8, 9), (9, 0))] == [False, True, True, True]
    assert runtime().serves((10, 3))
    assert runtime().serves((12, 1))


def test_the_image_is_proven_for_the_same_architectures() -> None:
    prove = (ROOT / "docker" / "prove.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(sm_\d+)"', prove)) == set(table("cuda")["architectures"])
    assert f'CUDA = "{table("cuda")["cuda"]}"' in prove
    assert f"torch=={table('cuda')['torch']}." in (ROOT / "docker" / "requirements.lock").read_text(encoding="utf-8")


def test_the_tables_name_their_sources_and_know_each_named_gpu() -> None:
    assert table("xids")["source"]
    assert table("cuda")["sources"]
    assert 13 not in xids()
    for key, gpu in known_gpus().items():
        figures = peak(gpu.name)
        assert figures is not None, key
        assert figures.key == key


def test_what_is_recorded_is_what_its_public_output_says() -> None:
    """Each figure and text of a recorded host stands in the output that it carries."""
    for key, host in recorded().items():
        if host["made"] != "recorded":
            continue
        assert host["source"]
        raw = " ".join(host["raw"]).lower()
        told = [value for name, value in host["driver"].items() if name not in ("cuda", "nodes")]
        for gpu in host["cards"]:
            told += [value for name, value in gpu.items() if name not in ("capability", "pci_bus", "name")]
            told += gpu.get("mig_instances_mib", [])
        for value in told:
            if isinstance(value, str | int) and not isinstance(value, bool):
                assert str(value).lower() in raw, (key, value)


def test_the_version_of_the_kernel_module_is_read_from_both_of_its_texts() -> None:
    open_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  (dvs-builder)"
    assert module_version(open_module) == "570.158.01"
    assert module_version("\n".join(recorded()["mismatch"]["raw"])) == "580.173.02"
    assert module_version("") is None


def test_a_gpu_in_a_machine_without_its_driver_is_worth_a_word(faults: Any) -> None:
    host = GpuHost("mismatch", driver={"module": None, "nvml_library": None, "devices": ("0000:01:00.0",)})
    finding = found(host)["gpus"][0]
    faults.seen("NVIDIA GPU without its driver", made="constructed", finding=as_json("gpus", finding), check="gpus")
    inside = GpuHost("lost-access", driver={"nodes": (), "nvml_library": None, "devices": ("0000:01:00.0",)})
    finding = found(inside)["gpus"][0]
    faults.seen("container of a GPU host", made="constructed", finding=as_json("gpus", finding), check="gpus")
    assert (finding.severity, finding.remedy) == ("warning", "docker run --gpus all ...")
    assert found(inside, run=config(device="cuda"))["gpus"][0].exit_code == 71


def test_a_report_about_another_gpu_or_of_a_program_is_no_alarm() -> None:
    assert wrong(GpuHost("xid-109", change={"pci_bus": "0000:1b:00.0"})) == []
    program = GpuHost("xid-109")
    program.log = program.log[:1]
    assert wrong(program) == []
    program.log = ()
    assert wrong(program) == []
