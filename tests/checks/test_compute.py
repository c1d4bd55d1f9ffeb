"""The compute group on this machine: all is well as it is, and what the machine lacks is named."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest
from checks.conftest import namespace

from loradock.checks.compute import CHECKS

TRITON = ["--only", "triton"]


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


def test_on_a_healthy_machine_every_check_says_ok_and_names_device_and_dtype(examined):
    seen = examined("--only", "compute", env={"OMP_NUM_THREADS": "2"})
    found = seen.content["findings"]
    assert seen.exit_code == 0
    assert {each["check"] for each in found} == {check.name for check in CHECKS}
    assert {each["severity"] for each in found} == {"ok"}, found
    numeric = [each for each in found if each["check"] not in ("collective", "triton")]
    assert all("cpu" in each["what"] or "cuda" in each["what"] for each in numeric)
    assert not [each for each in found if "IFNAME" in each["what"] or "_DIR" in each["what"]]


def test_an_interface_that_is_not_there_is_named_with_its_variable(examined, faults):
    seen = examined("--only", "collective", env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    finding = seen.one("collective")
    assert (finding["severity"], finding["remedy"]) == ("warning", "unset GLOO_SOCKET_IFNAME")
    faults.seen("GLOO_SOCKET_IFNAME names no interface", made="real", finding=finding, check="collective")


def test_a_loopback_interface_that_is_down_is_named(examined, faults):
    finding = examined("--only", "collective", within=[*namespace(":"), "unshare", "--net"]).one("collective")
    faults.seen("loopback interface down", made="real", finding=finding, check="collective")


def test_a_removed_c_compiler_is_named(examined, faults):
    seen = examined(*TRITON, env={"PATH": "/nonexistent", "CC": None}, python=sys.executable)
    faults.seen("C compiler removed", made="real", finding=seen.one("triton"), check="triton")


def test_a_compiler_that_cc_names_and_that_is_not_there_is_named(examined, faults):
    finding = examined(*TRITON, env={"CC": "/opt/gone/bin/cc"}).one("triton")
    assert finding["remedy"] == "unset CC"
    faults.seen("CC names a compiler that is gone", made="real", finding=finding, check="triton")


def test_missing_python_headers_are_named(examined, faults):
    headers = sysconfig.get_paths()["include"]
    finding = examined(*TRITON, within=namespace(f"mount -t tmpfs none {headers}"), env={"CC": None}).one("triton")
    faults.seen("Python's C headers missing", made="real", finding=finding, check="triton")


@pytest.mark.parametrize(
    ("options", "fault", "containing"),
    [
        ("noexec", "TRITON_CACHE_DIR on a noexec mount", "nothing may be executed"),
        ("ro", "TRITON_CACHE_DIR on a read-only mount", "cannot be written"),
        ("size=64k", "TRITON_CACHE_DIR on a full file system", "is full"),
    ],
)
def test_a_cache_that_cannot_hold_what_triton_compiles_is_named(examined, faults, tmp_path, options, fault, containing):
    within = namespace(f"mount -t tmpfs -o {options} none {tmp_path}")
    seen = examined(*TRITON, within=within, env={"TRITON_CACHE_DIR": f"{tmp_path}/triton", "CC": None})
    finding = seen.one("triton", containing=containing)
    assert finding["remedy"].startswith("export TRITON_CACHE_DIR=")
    faults.seen(fault, made="real", finding=finding, check="triton")


def test_what_triton_compiles_leaves_nothing_in_its_cache(examined, tmp_path):
    assert examined(*TRITON, env={"TRITON_CACHE_DIR": str(tmp_path)}).one("triton")["severity"] == "ok"
    assert not list(tmp_path.iterdir())


def test_an_assembler_that_does_not_run_is_named(examined, faults):
    assembler = package("triton") / "backends/nvidia/bin/ptxas"
    finding = examined(*TRITON, within=namespace(f"mount --bind /dev/null {assembler}")).one("triton")
    assert "ptxas" in finding["what"]
    faults.seen("Triton's assembler not executable", made="real", finding=finding, check="triton")


def test_a_compiled_library_of_bitsandbytes_that_does_not_load_is_a_warning_on_a_cpu(examined, faults):
    library = package("bitsandbytes") / "libbitsandbytes_cpu.so"
    seen = examined("--only", "quantised-linear", within=namespace(f"mount --bind /dev/null {library}"))
    faults.seen(
        "bitsandbytes' CPU library empty", made="real", finding=seen.one("quantised-linear"), check="quantised-linear"
    )
