"""Builds: whether torch, bitsandbytes, flash-attn and Triton were compiled to work together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, lasting_warning, ok
from loradock.env_check.remedies import as_locked, uninstall
from loradock.facts import Facts
from loradock.machine import Host

BITSANDBYTES = re.compile(r"libbitsandbytes_cuda(\d\d)(\d+)\.so")
PTXAS = "TRITON_PTXAS_PATH"
FLASH_ATTN = "flash_attn_2_cuda"
MISSING = "loradock env-check --only libraries"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Each is asked of its compiled code, torch first: the others are linked against what it loads."""
    installed = {distribution.name: distribution.version for distribution in host.distributions()}
    if "torch" not in installed:
        return [error("torch is not installed", remedy=as_locked(host, "torch"))]
    if why := host.import_failure("torch"):
        return [error(f"torch cannot be imported: {why}", remedy=MISSING if ".so" in why else as_locked(host, "torch"))]
    cuda = host.torch_cuda()
    findings: list[Finding] = []
    if "bitsandbytes" in installed:
        findings += four_bit(host, cuda, wants_gpu=plan.uses_gpu(facts))
    if "flash-attn" in installed and (why := host.import_failure(FLASH_ATTN)):
        what = f"flash-attn {installed['flash-attn']} does not load with torch {installed['torch']}: {why}"
        setting = plan.config.model.attention if plan.config else "auto"
        say = error if setting in ("auto", "flash_attention_2") else lasting_warning  # the run names another attention
        findings.append(say(what, remedy=uninstall(host.prefix(), "flash-attn")))
    if "triton" in installed and cuda:
        findings += assembler(host, cuda)
    together = [name for name in ("torch", "bitsandbytes", "flash-attn", "triton") if name in installed]
    abi = "C++11 ABI" if host.torch_has_cxx11_abi() else "the old C++ ABI"
    return findings or [ok(f"{', '.join(together)} are compatible: {f'CUDA {cuda}' if cuda else 'CPU'}, {abi}")]


def four_bit(host: Host, cuda: str | None, *, wants_gpu: bool) -> list[Finding]:
    """The library with the 4-bit kernels: there, loadable, and taken by bitsandbytes."""
    if why := host.import_failure("bitsandbytes"):
        return [error(f"bitsandbytes cannot be imported: {why}", remedy=as_locked(host, "bitsandbytes"))]
    findings: list[Finding] = []
    if cuda:
        folder = f"{host.site_packages()}/bitsandbytes"
        name, finding = chosen(cuda, host.libraries_in(folder), remedy=as_locked(host, "bitsandbytes"))
        findings += [finding] if finding else []
        if name and (why := host.loading(f"{folder}/{name}")):
            findings.append(error(f"{name} does not load: {why}", remedy=MISSING))
    has_cuda, refused = host.bitsandbytes_library()
    if wants_gpu and not has_cuda and not findings:
        why = f": {refused}" if refused else ""
        findings.append(
            error(
                f"bitsandbytes has no GPU support on a machine with a GPU{why}", remedy=as_locked(host, "bitsandbytes")
            )
        )
    elif refused and not findings:
        what = "bitsandbytes has no library that loads: its 4-bit code runs in plain Python"
        findings.append(lasting_warning(what, remedy=as_locked(host, "bitsandbytes")))
    return findings


def chosen(cuda: str, names: Sequence[str], *, remedy: str) -> tuple[str | None, Finding | None]:
    """The library that bitsandbytes takes for this CUDA, and what is wrong about it.

    As bitsandbytes/cextension.py does: the exact one, else the highest below, else the lowest above, of that major.
    """
    version = (int(cuda.split(".")[0]), int(cuda.split(".")[1]))
    builds = {(int(match[1]), int(match[2])): name for name in names if (match := BITSANDBYTES.fullmatch(name))}
    if version in builds:
        return builds[version], None
    below = [build for build in builds if build[0] == version[0] and build < version]
    above = [build for build in builds if build[0] == version[0] and build > version]
    if not below and not above:
        what = f"bitsandbytes is compiled without GPU support for torch's CUDA {cuda}: no library for CUDA {version[0]}"
        return None, error(what, remedy=remedy)
    nearest = max(below) if below else min(above)
    what = f"bitsandbytes has no library for torch's CUDA {cuda} and takes {builds[nearest]}"
    return builds[nearest], lasting_warning(what, remedy=remedy)


def assembler(host: Host, cuda: str) -> list[Finding]:
    """Triton's assembler: code of a newer major release than torch's may not load with the driver that torch needs."""
    shipped = f"{host.site_packages()}/triton/backends/nvidia/bin/ptxas"
    setting = host.environ.get(PTXAS)
    release = (setting and host.release_of(setting)) or host.release_of(shipped)
    if release is None:
        return [error(f"Triton's assembler does not run: {shipped}", remedy=as_locked(host, "triton"))]
    if int(release.split(".")[0]) == int(cuda.split(".")[0]):
        return []
    what = f"Triton assembles for CUDA {release}, torch is built for CUDA {cuda}"
    return [lasting_warning(what, remedy=f"unset {PTXAS}" if setting else as_locked(host, "triton"))]


CHECK = Check(
    name="builds",
    group="packages",
    level="compute",
    limit_seconds=120,
    proves="torch, bitsandbytes, flash-attn and Triton are built for the same CUDA and C++ ABI, and load together.",
    look=look,
    depends_on=(*LOADED, "device", "model"),
)
