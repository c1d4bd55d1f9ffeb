"""What the checks of packages make of facts that no machine here has, and how they read shared libraries."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import Faults

from loradock.config.load import load
from loradock.env_check.base import Check, Finding, Intent
from loradock.env_check.intent import intent
from loradock.env_check.packages import (
    builds,
    cuda_packages,
    cuda_runtimes,
    deepspeed,
    libraries,
    lock,
    protobuf,
    versions,
)
from loradock.errors import InputMissing
from loradock.facts import Gpu
from loradock.machine import Host, probe
from loradock.machine.answers import Distribution, PythonRun
from loradock.machine.elf import shared_object
from loradock.machine.lockfile.findings import Findings
from loradock.machine.lockfile.pins import IMAGE_PREFIX, find_lock
from loradock.plan import zero_config

SITE = Path(sysconfig.get_path("purelib"))
GPU = Gpu(name="NVIDIA A100-SXM4-80GB", memory_bytes=80 << 30, capability=(8, 0))
PREFIX = Path("/opt/venv")


def as_dict(check: Check, finding: Finding) -> dict[str, Any]:
    return {"check": check.name, **asdict(finding)}


class CpuBuild(Host):
    """A machine with a GPU, and torch's build for CPUs: its version.py as in torch 2.10.0+cpu."""

    def read_text(self, path: str) -> str | None:
        if path.endswith("torch/version.py"):
            return "__version__ = '2.10.0+cpu'\ndebug = False\ncuda: Optional[str] = None\n"
        return super().read_text(path)


def test_torch_for_cpus_beside_a_gpu_is_an_error_and_without_a_gpu_is_none(faults: Faults) -> None:
    host = CpuBuild()
    facts = replace(probe.gather(host), gpus=(GPU,))
    found = as_dict(cuda_packages.CHECK, cuda_packages.look(host, facts, intent(host))[0])
    faults.seen("torch built without CUDA beside a GPU", made="constructed", finding=found, check="cuda-packages")
    assert "torch==2.10.0" in found["remedy"]
    alone = cuda_packages.look(host, replace(facts, gpus=()), intent(host))
    assert [each.severity for each in alone] == ["ok"]


class Mute(Host):
    """bitsandbytes that has fallen back to its library for CPUs."""

    def import_failure(self, module: str) -> str | None:
        return None

    def bitsandbytes_library(self) -> tuple[bool, str | None]:
        return False, None


def test_bitsandbytes_on_the_cpu_beside_a_gpu_is_an_error(faults: Faults) -> None:
    found = as_dict(builds.CHECK, builds.four_bit(Mute(), None, wants_gpu=True)[0])
    faults.seen("bitsandbytes on the CPU beside a GPU", made="constructed", finding=found, check="builds")
    assert builds.four_bit(Mute(), None, wants_gpu=False) == []


@pytest.mark.parametrize(
    ("names", "taken", "severity"),
    [
        (["cuda126", "cuda128", "cuda130"], "cuda128", None),
        (["cuda121", "cuda126", "cuda130"], "cuda126", "warning"),
        (["cuda129", "cuda1210"], "cuda129", "warning"),
        (["cuda118", "cuda130", "rocm64"], None, "error"),
        ([], None, "error"),
    ],
)
def test_the_library_for_a_cuda_is_chosen_as_bitsandbytes_does(
    names: list[str], taken: str | None, severity: str | None
) -> None:
    name, finding = builds.chosen("12.8", [f"libbitsandbytes_{each}.so" for each in names], remedy="pip")
    assert name == (taken and f"libbitsandbytes_{taken}.so")
    assert (finding and finding.severity) == severity


def test_one_copy_of_a_library_from_elsewhere_is_a_warning_and_a_bundled_one_is_known_by_its_hash() -> None:
    own = ["/venv/nvidia/cublas/lib/libcublas.so.12", "/venv/nvidia/cublas/lib/libcublasLt.so.12"]
    loaded = cuda_runtimes.families(
        ["/cuda/lib64/libcublas.so.12.4.5", "/venv/x.libs/libcudart-d0da41ae.so.11.0", *own[1:]]
    )
    assert set(loaded) == {"libcublas", "libcudart", "libcublasLt"}
    found = cuda_runtimes.judge(loaded, own=own, environ={"LD_LIBRARY_PATH": "/x:/cuda/lib64"})
    assert [(each.severity, each.remedy) for each in found] == [("warning", "unset LD_LIBRARY_PATH")]


class BehindALink(Host):
    """Its site-packages are reached over a link, and its cuBLAS is loaded."""

    def __init__(self, link: Path) -> None:
        super().__init__()
        self.link = link

    def site_packages(self) -> Path:
        return self.link

    def distributions(self) -> tuple[Distribution, ...]:
        return ()

    def loaded_libraries(self) -> tuple[str, ...]:
        return self.libraries_below(str(self.link.resolve()))


def test_a_virtual_environment_behind_a_link_is_no_stranger(tmp_path: Path) -> None:
    library = tmp_path / "real" / "nvidia" / "cublas" / "lib" / "libcublas.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    host = BehindALink(tmp_path / "link")
    found = cuda_runtimes.look(host, probe.gather(host), intent(host, load(None, needs_inputs=False).config))
    assert [(each.severity, each.what) for each in found] == [("ok", "one copy of each of 1 CUDA libraries is loaded")]


def test_parts_of_one_library_are_no_second_copy() -> None:
    names = ["libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libcudnn.so.9", "libcudnn_graph.so.9", "libcublasLt.so.12"]
    assert [len(paths) for paths in cuda_runtimes.families([f"/v/{name}" for name in names]).values()] == [1, 1, 1]


def test_many_differences_from_the_lock_are_five_lines_the_worst_first() -> None:
    findings = Findings(prefix=PREFIX, versions={"peft": "0.21.2"})
    for number in range(40):
        findings.add("unowned", "no package owns it", file=f"/opt/venv/{number}")
    findings.add("tampered", "differs from the RECORD of peft", file="/opt/venv/peft.py", package="peft")
    found = lock.judge(findings.in_order())
    assert [each.severity for each in found] == ["error", *["warning"] * 4]
    assert found[-1].what == "37 more differences from the lock"
    assert lock.judge(findings.in_order()[:5])[-1].what.endswith("no package owns it")


def test_an_image_is_not_mended_in_place() -> None:
    findings = Findings(prefix=IMAGE_PREFIX, versions={}, is_image=True)
    findings.add("tampered", "differs from the manifest", file="/opt/loradock/venv/x")
    assert lock.judge(findings.in_order())[0].remedy == "loradock build"
    several = [Distribution(name="peft", version=each, folder=f"/x/{each}") for each in ("0.1", "0.2")]
    assert versions.twice(several, {"peft": "0.2"}, prefix=IMAGE_PREFIX)[0].remedy == "loradock build"


class WithoutLock(Host):
    """loradock installed where no lock lies beside it."""

    def prefix(self) -> Path:
        return IMAGE_PREFIX


def test_without_a_lock_that_is_said_and_is_no_finding() -> None:
    host = WithoutLock()
    with pytest.raises(InputMissing):
        find_lock(host.prefix())
    for check in (versions, lock):
        found = check.look(host, probe.gather(host), intent(host))
        assert [(each.severity, "no lock" in each.what) for each in found] == [("ok", True)]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("2.10.0", "2.10.0+cu128", True), ("2.10", "2.10.0", True), ("2.10.0", "2.9.1", False), ("odd", "odd", True)],
)
def test_a_local_label_is_the_same_release(one: str, other: str, *, expected: bool) -> None:
    assert versions.is_same(one, other) is expected


def test_what_only_an_extra_asks_for_may_be_missing() -> None:
    requirements = {
        "loradock": ['peft; extra == "train"', 'wandb; extra == "track"'],
        "trl": ['vllm>=1; extra == "vllm"', "numpy>=2"],
    }
    unmet = versions.unmet({"peft", "wandb", "vllm", "numpy"}, requirements, {"numpy": "1.26.4"})
    assert unmet == {"peft": ("loradock", "peft"), "numpy": ("trl", "numpy>=2")}


def test_the_package_that_ends_the_process_is_named() -> None:
    said = ('{"name": "protobuf", "failed": null, "version": "7.36.2", "file": "/v"}', '{"name": "a", "failed": null}')
    assert protobuf.answers(PythonRun(exit_code=-6, lines=said), ["a", "b", "c"])[1] == {
        "b": "importing it ends the process with -6"
    }
    assert protobuf.answers(PythonRun(exit_code=None, lines=()), ["a"])[1] == {"protobuf": "importing it does not end"}


def test_a_package_that_fails_of_its_own_is_not_laid_to_protobuf() -> None:
    ran = Host().python_run(protobuf.PROGRAM, ["tensorboard=no_such_module"], timeout_seconds=60)
    runtime, failed, others = protobuf.answers(ran, ["tensorboard"])
    remedies = {"tensorboard": "pip"}
    (found,) = protobuf.judge(failed, others, runtime=runtime, users=[*failed], trackers=None, remedies=remedies)
    assert found.what == "tensorboard cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"


def test_a_tracker_that_the_run_does_not_use_is_a_warning() -> None:
    found = protobuf.judge(
        {"wandb": "no", "sentencepiece": "no"},
        runtime={"version": "7"},
        users=["wandb", "sentencepiece"],
        trackers=["mlflow"],
        remedies={"wandb": "pip", "sentencepiece": "pip"},
    )
    assert [each.severity for each in found] == ["warning", "error"]


def test_shared_libraries_are_read_as_readelf_reads_them() -> None:
    paths = [
        *sorted(SITE.glob("nvidia/*/lib/*.so*")),
        *sorted(SITE.glob("torch/lib/*.so*")),
        *SITE.glob("triton/_C/*.so"),
    ]
    said = subprocess.run(["readelf", "-dW", *map(str, paths)], capture_output=True, text=True, check=True).stdout
    parts = dict(re.findall(r"^File: (.+)\n((?:(?!File: ).*\n?)*)", said, re.MULTILINE))
    assert len(parts) == len(paths) > 50
    for path in paths:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", parts[str(path)])
        runpath = [each for text in re.findall(r"\(RUNPATH\).*\[(.*)\]", parts[str(path)]) for each in text.split(":")]
        found = shared_object(path)
        assert found is not None
        assert list(found.needed) == needed
        assert list(found.runpath) == [each for each in runpath if each]


def test_what_is_no_library_is_none(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("/* GNU ld script */")
    (tmp_path / "short.so").write_bytes(b"\x7fELF\x02\x01")
    names = ("text.so", "short.so", "absent.so")
    assert [shared_object(tmp_path / name) for name in names] == [None, None, None]


def test_a_library_of_the_driver_is_not_missed_and_one_that_torch_loads_counts_as_found() -> None:
    site = str(SITE)
    objects = [
        found
        for root in ("torch", "nvidia")
        for path in Host().libraries_below(f"{site}/{root}")
        if (found := shared_object(Path(path)))
    ]
    assert any("libcuda.so.1" in each.needed for each in objects)
    places = libraries.Places(variable=(), system=Host().system_libraries())
    bits_and_bytes = shared_object(SITE / "bitsandbytes" / "libbitsandbytes_cuda128.so")
    assert bits_and_bytes
    missing = libraries.unresolved([*objects, bits_and_bytes], places, Host())
    assert not any(re.match("libcu|libnv", name) for name in missing)
    assert "libcudart.so.12" in libraries.unresolved([bits_and_bytes], places, Host())


class With(Host):
    """A machine with these distributions."""

    def __init__(self, **versions: str) -> None:
        super().__init__()
        self.given = [
            Distribution(name=name.replace("_", "-"), version=each, folder="/x") for name, each in versions.items()
        ]

    def distributions(self) -> Sequence[Distribution]:
        return self.given


def asking(mode: str, host: Host) -> Intent:
    return replace(intent(host), config=load(None, overrides=[f"train.parallel={mode}"], needs_inputs=False).config)


def test_zero_without_deepspeed_is_an_error_that_says_what_to_type(faults: Faults) -> None:
    host = With(torch="2.10.0")
    facts = probe.gather(host)
    found = as_dict(deepspeed.CHECK, deepspeed.look(host, replace(facts, in_container=False), asking("zero3", host))[0])
    faults.seen("ZeRO asked for, DeepSpeed not installed", made="constructed", finding=found, check="deepspeed")
    assert found["remedy"] == zero_config.INSTALL
    inside = deepspeed.look(host, replace(facts, in_container=True), asking("zero2", host))[0]
    assert inside.remedy == zero_config.BUILD
    assert deepspeed.look(host, facts, asking("fsdp", host))[0].severity == "ok"


def test_another_release_of_deepspeed_is_a_warning_and_a_part_that_is_missing_an_error() -> None:
    parts = {name.replace("-", "_"): "1" for name in deepspeed.NEEDED}
    for versions_, severity in (
        ({"deepspeed": zero_config.TRIED, **parts}, "ok"),
        ({"deepspeed": "0.18.0", **parts}, "warning"),
        ({"deepspeed": zero_config.TRIED}, "error"),
    ):
        host = With(**versions_)
        found = deepspeed.look(host, probe.gather(host), asking("zero2", host))
        assert [each.severity for each in found] == [severity], found
