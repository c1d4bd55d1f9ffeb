"""Packages that do not fit, made for real: a copy of this environment by links, and variables that lead elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import Examine, Faults
from env_check.linked_venv import LinkedVenv, inodes, linked_venv

from loradock.env_check.base import Check, Finding
from loradock.env_check.intent import intent
from loradock.env_check.packages import python_path
from loradock.machine import Host, probe

pytestmark = pytest.mark.thin(2)

SITE = Path(sysconfig.get_path("purelib"))
NVIDIA = SITE / "nvidia"
CUDART = NVIDIA / "cuda_runtime" / "lib" / "libcudart.so.12"
QUICK = "versions,python-path,library-variables,bitsandbytes-variables,cuda-packages"
TOUCHED = [
    "peft/__init__.py",
    "torch/version.py",
    "google/protobuf/runtime_version.py",
    "nvidia/nvjitlink/lib/libnvJitLink.so.12",
    "bitsandbytes/libbitsandbytes_cuda128.so",
]
CLEAN = dict.fromkeys(("LD_LIBRARY_PATH", "LD_PRELOAD", "BNB_CUDA_VERSION", "PYTHONPATH", "PYTHONHOME"))


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedVenv]:
    before = inodes(TOUCHED)
    with linked_venv(tmp_path_factory.mktemp("linked")) as venv:
        yield venv
    assert inodes(TOUCHED) == before


def severities(examined: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["severity"] for each in examined["findings"]}


def test_quick_checks_find_nothing_wrong_here_and_name_no_suspect(examined: Examine) -> None:
    seen = examined("--only", QUICK, "--level", "quick", env=CLEAN)
    assert seen.exit_code == 0
    assert severities(seen.content) == dict.fromkeys(QUICK.split(","), "ok")
    said = " ".join(each["what"] for each in seen.content["findings"])
    assert not any(suspect in said for suspect in ("LD_", "BNB", "PYTHON", "libcu", "bitsandbytes", "sitecustomize"))


def test_harmless_variables_are_no_finding(examined: Examine, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmine.so.1").write_bytes(b"")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "helper.py").write_text("")
    folders = [str(tmp_path / "lib"), "/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", str(CUDART.parent)]
    env = {"LD_LIBRARY_PATH": ":".join(folders), "PYTHONPATH": str(tmp_path), "CUDA_HOME": "/usr/local/cuda-11.8"}
    seen = examined("--only", QUICK, "--level", "quick", env={**CLEAN, **env}, cwd=tmp_path)
    assert set(severities(seen.content).values()) == {"ok"}


def test_a_toolkit_of_the_same_release_on_the_search_path_is_no_finding(examined: Examine, tmp_path: Path) -> None:
    shutil.copy(CUDART, tmp_path / "libcudart.so.12.8.90")
    (tmp_path / "libcudart.so.12").symlink_to("libcudart.so.12.8.90")
    seen = examined("--only", "library-variables", "--level", "quick", env={**CLEAN, "LD_LIBRARY_PATH": str(tmp_path)})
    assert severities(seen.content) == {"library-variables": "ok"}


def test_variables_left_over_from_another_cuda_are_named(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    shutil.copy(CUDART, tmp_path / "libcudart.so.12")
    env = {"BNB_CUDA_VERSION": "121", "LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": str(tmp_path / "libcudart.so.12")}
    seen = examined("--only", QUICK, "--level", "quick", env={**CLEAN, **env})
    assert seen.exit_code == 71
    found = seen.one("bitsandbytes-variables")
    faults.seen("BNB_CUDA_VERSION of another CUDA", made="real", finding=found, check="bitsandbytes-variables")
    assert found["remedy"] == "unset BNB_CUDA_VERSION"
    for variable, fault in (
        ("LD_LIBRARY_PATH", "A stale libcudart on LD_LIBRARY_PATH"),
        ("LD_PRELOAD", "libcudart preloaded"),
    ):
        found = seen.one("library-variables", containing=variable)
        faults.seen(fault, made="real", finding=found, check="library-variables")
        assert found["remedy"] == f"unset {variable}"


def test_other_values_of_the_variables_are_named(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    compiled(tmp_path / "libstdc++.so.6", "int answer(void) { return 0; }")
    (tmp_path / "libcudnn_graph.so.9").write_bytes(b"")
    env = {
        "BNB_CUDA_VERSION": "128",
        "LD_LIBRARY_PATH": str(tmp_path),
        "LD_PRELOAD": "/opt/gone/libjemalloc.so",
        "PYTHONHOME": sysconfig.get_config_var("prefix"),
        "PYTHONPATH": str(SITE),
    }
    within = ["env", f"LD_LIBRARY_PATH={tmp_path}", f"LD_PRELOAD={env.pop('LD_PRELOAD')}"]
    env.pop("LD_LIBRARY_PATH")
    env["PYTHONPATH"] += f":{Path(__file__).parents[2] / 'src'}"
    seen = examined("--only", QUICK, "--level", "quick", env={**CLEAN, **env}, within=within)
    found = seen.one("bitsandbytes-variables")
    faults.seen("BNB_CUDA_VERSION set, to torch's own", made="real", finding=found, check="bitsandbytes-variables")
    for fault, text in {
        "An old libstdc++ on LD_LIBRARY_PATH": "GLIBCXX",
        "Parts of another cuDNN on LD_LIBRARY_PATH": "libcudnn_graph",
        "LD_PRELOAD of what is not there": "LD_PRELOAD",
    }.items():
        found = seen.one("library-variables", containing=text)
        faults.seen(fault, made="real", finding=found, check="library-variables")
    faults.seen("PYTHONHOME set", made="real", finding=seen.one("python-path"), check="python-path")


def test_another_peft_on_the_module_path_is_named(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "__init__.py").write_text("")
    (tmp_path / "random.py").write_text((Path(sysconfig.get_path("stdlib")) / "random.py").read_text())
    seen = examined("--only", "python-path", "--level", "quick", env={**CLEAN, "PYTHONPATH": str(tmp_path)})
    found = seen.one("python-path", containing="peft")
    faults.seen("PYTHONPATH with another peft", made="real", finding=found, check="python-path")
    assert "random" in found["what"]
    assert found["remedy"] == "unset PYTHONPATH"


def test_a_sitecustomize_of_somebodys_own_is_named(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    seen = examined("--only", "python-path", "--level", "quick", env={**CLEAN, "PYTHONPATH": str(tmp_path)})
    found = seen.one("python-path", containing="every start")
    faults.seen("A sitecustomize of somebody's own", made="real", finding=found, check="python-path")


class OutsideAVenv(Host):
    """A Python that is not a virtual environment: the user's own packages come before all others."""

    def __init__(self, own: Path) -> None:
        self.own = own

    def module_path(self) -> tuple[str, ...]:
        return (str(self.standard_library()), str(self.own), str(self.site_packages()))


def test_the_users_own_packages_before_the_installed_ones_are_named(faults: Faults, tmp_path: Path) -> None:
    own = tmp_path / ".local" / "lib" / "python3.11" / "site-packages"
    (own / "transformers").mkdir(parents=True)
    (own / "transformers" / "__init__.py").write_text("")
    host = OutsideAVenv(own)
    found = as_dict(python_path.CHECK, python_path.look(host, probe.gather(host), intent(host))[0])
    faults.seen("transformers in the user's own site-packages", made="constructed", finding=found, check="python-path")
    assert found["remedy"] == "export PYTHONNOUSERSITE=1"


def as_dict(check: Check, finding: Finding) -> dict[str, Any]:
    return {"check": check.name, **asdict(finding)}


def test_packages_that_are_not_as_locked_are_named(examined: Examine, faults: Faults, linked: LinkedVenv) -> None:
    transformers, click = linked.dist_info("transformers"), linked.dist_info("click")
    with ExitStack() as broken:
        broken.enter_context(linked.changed(f"{transformers}/METADATA", b"\nVersion: 5.", b"\nVersion: 3."))
        broken.enter_context(linked.changed(f"{click}/METADATA", b"\nVersion: 8.5.1", b"\nVersion: 8.5.0"))
        broken.enter_context(linked.removed(linked.dist_info("peft")))
        broken.enter_context(linked.removed(linked.dist_info("wandb")))
        broken.enter_context(linked.planted("accelerate-0.1.0.dist-info/METADATA", metadata("accelerate", "0.1.0")))
        name = "nvidia_cublas_cu11-11.11.3.6.dist-info/METADATA"
        broken.enter_context(linked.planted(name, metadata("nvidia-cublas-cu11", "11.11.3.6")))
        name = "nvidia_nccl_cu13-2.27.5.dist-info/METADATA"
        broken.enter_context(linked.planted(name, metadata("nvidia-nccl-cu13", "2.27.5")))
        seen = examined("--only", QUICK, "--level", "quick", env=CLEAN, python=linked.python)
    for fault, text in {
        "transformers in a release that trl cannot use": "transformers",
        "A package removed": "peft",
        "A package in another release than the lock's": "click",
        "A package installed twice": "accelerate",
    }.items():
        found = seen.one("versions", containing=text)
        faults.seen(fault, made="real", finding=found, check="versions")
    assert not any("wandb" in each["what"] for each in seen.content["findings"])
    for fault, text in {"CUDA 11 packages beside CUDA 12": "cublas", "NCCL of two CUDAs in one place": "nccl"}.items():
        found = seen.one("cuda-packages", containing=text)
        faults.seen(fault, made="real", finding=found, check="cuda-packages")


def test_a_protobuf_older_than_the_generated_code_is_named(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    shutil.copytree(SITE / "google" / "protobuf", tmp_path / "google" / "protobuf")
    path = tmp_path / "google" / "protobuf" / "runtime_version.py"
    path.write_text(path.read_text().replace("OSS_MAJOR = 7", "OSS_MAJOR = 4"))
    path = path.with_name("__init__.py")
    path.write_text(path.read_text().replace("__version__ = '7.", "__version__ = '4."))
    env = {**CLEAN, "PYTHONPATH": str(tmp_path)}
    seen = examined("--only", "protobuf,python-path", env=env)
    found = seen.one("protobuf")
    faults.seen("A protobuf older than generated code", made="real", finding=found, check="protobuf")
    assert found["remedy"] == "unset PYTHONPATH"
    found = seen.one("python-path")
    faults.seen("Another protobuf on PYTHONPATH", made="real", finding=found, check="python-path")


@pytest.mark.thin(6)
def test_two_cuda_runtimes_in_one_process_are_named(
    examined: Examine, faults: Faults, linked: LinkedVenv, tmp_path: Path
) -> None:
    shutil.copy(CUDART, tmp_path / "libcudart.so.12")
    source = (
        "extern void *_ZN3c1019an_older_torch_hadEv(void); void *f(void) { return _ZN3c1019an_older_torch_hadEv(); }"
    )
    compiled(tmp_path / "flash_attn_2_cuda.so", source)
    with ExitStack() as broken:
        broken.enter_context(linked.planted("flash_attn_2_cuda.so", (tmp_path / "flash_attn_2_cuda.so").read_bytes()))
        name = "flash_attn-2.8.3.post2.dist-info/METADATA"
        broken.enter_context(linked.planted(name, metadata("flash-attn", "2.8.3.post2")))
        broken.enter_context(linked.removed("bitsandbytes/libbitsandbytes_cuda128.so"))
        env = {**CLEAN, "LD_PRELOAD": str(tmp_path / "libcudart.so.12")}
        seen = examined("--only", "cuda-runtimes,builds", env=env, python=linked.python)
    found = seen.one("cuda-runtimes")
    faults.seen("Two CUDA runtimes in one process", made="real", finding=found, check="cuda-runtimes")
    assert found["remedy"] == "unset LD_PRELOAD"
    found = seen.one("builds", containing="flash-attn")
    faults.seen("flash-attn compiled for another torch", made="real", finding=found, check="builds")
    assert "an_older_torch_had" in found["what"]
    found = seen.one("builds", containing="bitsandbytes")
    faults.seen("bitsandbytes without the library for this CUDA", made="real", finding=found, check="builds")


@pytest.mark.thin(6)
def test_bitsandbytes_without_gpu_support_is_named(examined: Examine, faults: Faults, linked: LinkedVenv) -> None:
    names = [path.name for path in linked.site.glob("bitsandbytes/libbitsandbytes_cuda12*.so")]
    with ExitStack() as broken:
        for name in names:
            broken.enter_context(linked.removed(f"bitsandbytes/{name}"))
        seen = examined("--only", "builds", env=CLEAN, python=linked.python)
    found = seen.one("builds", containing="compiled without GPU support")
    faults.seen("bitsandbytes compiled without GPU support", made="real", finding=found, check="builds")


def test_a_missing_library_is_named_by_its_package(examined: Examine, faults: Faults, linked: LinkedVenv) -> None:
    with ExitStack() as broken:
        broken.enter_context(linked.removed("nvidia/nvjitlink/lib/libnvJitLink.so.12"))
        broken.enter_context(linked.removed("nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8"))
        seen = examined("--only", "libraries,builds,cuda-runtimes", env=CLEAN, python=linked.python)
    found = seen.one("libraries", containing="libnvJitLink")
    faults.seen("A library that others need is missing", made="real", finding=found, check="libraries")
    assert "nvidia-nvjitlink-cu12==12.8.93" in found["remedy"]
    found = seen.one("libraries", containing="libnvrtc-builtins")
    faults.seen("A library that NVRTC opens by name is missing", made="real", finding=found, check="libraries")
    found = seen.one("builds")
    faults.seen("torch without a library that it links to", made="real", finding=found, check="builds")
    found = seen.one("cuda-runtimes")
    faults.seen("torch that does not import", made="real", finding=found, check="cuda-runtimes")


@pytest.mark.thin(6)
def test_an_environment_edited_since_it_was_installed_is_named(
    examined: Examine, faults: Faults, linked: LinkedVenv
) -> None:
    with ExitStack() as broken:
        broken.enter_context(linked.changed("peft/__init__.py", b"import", b"import os, "))
        broken.enter_context(linked.removed("trl/__init__.py"))
        broken.enter_context(linked.planted("evil.pth", "import os; os.environ.setdefault('EVIL', '1')\n"))
        seen = examined("--only", "lock", env=CLEAN, python=linked.python)
    for fault, text, severity in (
        ("A file of site-packages edited", "peft/__init__.py", "error"),
        ("A file of site-packages removed", "trl/__init__.py", "error"),
        ("A .pth file planted", "evil.pth", "warning"),
    ):
        found = seen.one("lock", containing=text)
        faults.seen(fault, made="real", finding=found, check="lock")
        assert found["severity"] == severity


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n"


def compiled(path: Path, source: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
