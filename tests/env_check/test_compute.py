"""The compute group on this machine: all is well as it is, and what the machine lacks is named."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest
from env_check.conftest import namespace
from env_check.damage import damaged, package

from loradock.env_check.compute import CHECKS
from loradock.env_check.compute.collective import Exchange

pytestmark = pytest.mark.thin(1)

TRITON = ["--only", "triton"]


@pytest.mark.thin(4)
def test_on_a_healthy_machine_every_check_says_ok_names_device_and_dtype_and_leaves_nothing(examined, tmp_path):
    seen = examined("--only", "compute", env={"OMP_NUM_THREADS": "2", "TRITON_CACHE_DIR": str(tmp_path)})
    found = seen.content["findings"]
    assert seen.exit_code == 0
    assert {each["check"] for each in found} == {check.name for check in CHECKS}
    assert {each["severity"] for each in found} == {"ok"}, found
    numeric = [each for each in found if each["check"] not in ("collective", "triton", "experts")]
    assert all("cpu" in each["what"] or "cuda" in each["what"] for each in numeric)
    assert not [each for each in found if "IFNAME" in each["what"] or "_DIR" in each["what"]]
    assert not list(tmp_path.iterdir())


LATE = """
import multiprocessing, time, torch
from loradock.env_check.compute import collective
right = torch.set_num_threads
def late(number):
    time.sleep(3 if multiprocessing.current_process().name.endswith("2") else 0)
    right(number)
torch.set_num_threads = late
print(collective.all_reduce("gloo", 2, limit_seconds=2))
"""


@pytest.mark.thin(4)
def test_a_process_that_is_late_to_begin_is_waited_for():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.endswith(f"{Exchange(backend='gloo', ranks=2, faults=(None, None))}\n"), done.stdout


@pytest.mark.thin(4)
def test_no_loopback_no_headers_wrong_products_and_no_library_for_4_bit_are_four_findings(examined, faults):
    headers, library = sysconfig.get_paths()["include"], package("bitsandbytes") / "libbitsandbytes_cpu.so"
    within = [*namespace(f"mount -t tmpfs none {headers}\nmount --bind /dev/null {library}"), "unshare", "--net"]
    env = {**damaged("float32_product"), "CC": None}
    seen = examined("--only", "collective,dtypes,triton,quantised-linear", within=within, env=env)
    faults.seen("loopback interface down", made="real", finding=seen.one("collective"), check="collective")
    faults.seen("Python's C headers missing", made="real", finding=seen.one("triton"), check="triton")
    faults.seen("float32 products in bfloat16", made="real", finding=seen.one("dtypes"), check="dtypes")
    empty = seen.one("quantised-linear")
    faults.seen("bitsandbytes' CPU library empty", made="real", finding=empty, check="quantised-linear")


def test_a_compiler_that_cc_names_and_that_is_not_there_is_named(examined, faults):
    finding = examined(*TRITON, env={"CC": "/opt/gone/bin/cc"}).one("triton")
    assert finding["remedy"] == "unset CC"
    faults.seen("CC names a compiler that is gone", made="real", finding=finding, check="triton")


def test_a_cache_that_cannot_be_written_is_named(examined, faults, tmp_path):
    within = namespace(f"mount -t tmpfs -o ro none {tmp_path}")
    finding = examined(*TRITON, within=within, env={"TRITON_CACHE_DIR": f"{tmp_path}/triton", "CC": None}).one("triton")
    assert finding["remedy"].startswith("export TRITON_CACHE_DIR=")
    faults.seen("TRITON_CACHE_DIR on a read-only mount", made="real", finding=finding, check="triton")


@pytest.mark.thin(4)
def test_an_assembler_that_does_not_run_is_named(examined, faults):
    assembler = package("triton") / "backends/nvidia/bin/ptxas"
    finding = examined(*TRITON, within=namespace(f"mount --bind /dev/null {assembler}")).one("triton")
    assert "ptxas" in finding["what"]
    faults.seen("Triton's assembler not executable", made="real", finding=finding, check="triton")
