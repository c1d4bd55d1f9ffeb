"""CUDA packages: one CUDA for all that is installed, and a torch that can use the GPUs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.remedies import reinstall, uninstall
from loradock.facts import Facts
from loradock.machine import Host
from loradock.text.amounts import some_of

SUFFIXED = re.compile(r"nvidia-([a-z0-9-]+?)-cu(\d+)")
# Since CUDA 13 these have no suffix; their own version begins with that of CUDA.
UNSUFFIXED = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cuda-cupti", "nvidia-nvjitlink", "nvidia-nvtx")
# Their packages for every CUDA hold the same file names: the one installed last has overwritten the other.
SAME_FILES = ("cudnn", "nccl", "cusparselt", "nvshmem")
CUDA = re.compile(r"^cuda: .*= '(\d+)\.\d+'", re.MULTILINE)
VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """By the names of the distributions, and by what torch says of itself, which is read without importing it."""
    version = host.read_text(str(host.site_packages() / "torch" / "version.py"))
    if version is None:
        return [ok("no torch is installed here")]
    installed = {distribution.name: distribution.version for distribution in host.distributions()}
    built, name = CUDA.search(version), VERSION.search(version)
    prefix, torch = host.prefix(), name[1] if name else "unknown"
    if not built:
        return [without_cuda(torch, wants_gpu=plan.uses_gpu(facts), prefix=prefix)]
    return judge(by_major(installed), major=built[1], installed=installed, prefix=prefix)


def by_major(installed: Mapping[str, str]) -> dict[str, list[str]]:
    """{CUDA's major release: names of the packages for it}."""
    packages_of: defaultdict[str, list[str]] = defaultdict(list)
    for name, version in sorted(installed.items()):
        if match := SUFFIXED.fullmatch(name):
            packages_of[match[2]].append(name)
        elif name in UNSUFFIXED:
            packages_of[version.partition(".")[0]].append(name)
    return dict(packages_of)


def without_cuda(torch: str, *, wants_gpu: bool, prefix: Path) -> Finding:
    """A build for the CPU: all that a machine without a GPU needs."""
    if not wants_gpu:
        return ok(f"torch {torch} is built for CPUs, and there is no GPU")
    what = f"torch {torch} is built without CUDA: it cannot use the GPU"
    return error(what, remedy=reinstall(prefix, {"torch": torch.partition("+")[0]}))


def judge(
    packages: Mapping[str, list[str]], *, major: str, installed: Mapping[str, str], prefix: Path
) -> list[Finding]:
    """Packages for another CUDA than torch's: an error where their files lie in place of the right ones."""
    findings: list[Finding] = []
    for older in sorted(set(packages) - {major}):
        names = packages[older]
        broken = [
            f"nvidia-{part}-cu{major}"
            for part in SAME_FILES
            if f"nvidia-{part}-cu{older}" in names and f"nvidia-{part}-cu{major}" in installed
        ]
        if broken:
            what = f"nvidia-{broken[0][7:].partition('-')[0]} is installed for CUDA {older} and {major}, in one place"
            remedy = f"{uninstall(prefix, ' '.join(names))} && {reinstall(prefix, {n: installed[n] for n in broken})}"
            findings.append(error(f"{what}; torch is built for CUDA {major}", remedy=remedy))
        else:
            what = f"torch is built for CUDA {major}, and for CUDA {older} there is {some_of(names, most=3)}"
            findings.append(warning(what, remedy=uninstall(prefix, " ".join(names))))
    return findings or [ok(f"torch and {len(packages.get(major, ()))} CUDA packages are for CUDA {major}")]


CHECK = Check(
    name="cuda-packages",
    group="packages",
    proves="All CUDA packages are for torch's CUDA version; torch has CUDA support if there is a GPU.",
    look=look,
)
