"""Driver: its CUDA library is there, is not below the floor of the locked torch, and matches the kernel module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from loradock.env_check.base import Check, Finding, Intent, error, ok
from loradock.env_check.known import Runtime, runtime
from loradock.env_check.seen import on_host
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import DriverState

LIBRARY_VERSION = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)$")
LIBRARY_PATH = "LD_LIBRARY_PATH"
# Forward compatibility is for data centre GPUs: CUDA refuses it (error 804) on the others.
CONSUMER = re.compile(r"GeForce|TITAN|\bRTX\b(?! A\d)", re.IGNORECASE)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Judge what the driver answers."""
    return on_host([judge(host.driver(), facts, runtime(), host.environ)], facts)


def judge(driver: DriverState, facts: Facts, needed: Runtime, environ: Mapping[str, str]) -> Finding:
    """By cuDriverGetVersion, not by what a tool prints: that is what the CUDA runtime asks too."""
    if driver.cuda is None:
        return _no_library(driver, facts)
    speaks = f"{driver.cuda // 1000}.{driver.cuda % 1000 // 10}"
    version = driver.version or driver.module or "?"
    if driver.cuda < needed.driver_cuda:
        return error(
            f"driver {version} supports CUDA {speaks}; torch is built for {needed.cuda}, which needs {needed.driver}",
            remedy="sudo apt-get install nvidia-driver-570-server && sudo reboot",
        )
    if failure := _libraries_differ(driver, facts, version, environ):
        return failure
    return ok(f"driver {version} supports CUDA {speaks}, torch is built for {needed.cuda}")


def _libraries_differ(driver: DriverState, facts: Facts, version: str, environ: Mapping[str, str]) -> Finding | None:
    """CUDA's library is that of the module, or a newer one for compatibility, which data centre GPUs alone take."""
    library = LIBRARY_VERSION.search(driver.cuda_library or "")
    if not library or not driver.module or library[1] == driver.module:
        return None
    if not any("compat" in folder for folder in PurePosixPath(driver.cuda_library or "").parts[:-1]):
        what = f"libcuda.so.1 is of driver {library[1]}, the kernel module of {driver.module}"
        return error(what, remedy="docker run --gpus all ..." if facts.in_container else "sudo reboot")
    if _parts(library[1]) > _parts(driver.module) and not any(CONSUMER.search(gpu.name) for gpu in facts.gpus):
        return None
    # The library of a container is its image's: there root of the container takes it away, and has no sudo.
    root = "" if facts.in_container else "sudo "
    elsewhere = f"{root}rm /etc/ld.so.conf.d/*compat*.conf && {root}ldconfig"
    return error(
        f"{facts.gpus[0].name} cannot use CUDA's compatibility library {library[1]} on driver {version}",
        remedy="unset LD_LIBRARY_PATH" if "compat" in environ.get(LIBRARY_PATH, "") else elsewhere,
    )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _no_library(driver: DriverState, facts: Facts) -> Finding:
    what = f"NVML shows a GPU, CUDA's driver library does not work: {driver.cuda_failure}"
    if facts.in_container:
        return error(what, remedy="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...")
    return error(what, remedy="sudo ldconfig && ldconfig -p | grep libcuda.so.1")


CHECK = Check(
    name="driver",
    group="gpu",
    proves="The driver is new enough for the CUDA of the locked torch, and its libraries match its module.",
    look=look,
    needs="gpu",
)
