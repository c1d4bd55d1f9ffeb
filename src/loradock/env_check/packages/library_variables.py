"""Variables of the dynamic linker: whether they put other CUDA or C++ libraries before the installed ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host
from loradock.text.amounts import some_of

PATH, PRELOAD = "LD_LIBRARY_PATH", "LD_PRELOAD"
CXX = "libstdc++.so.6"
# Wheels are manylinux_2_28 at most: their C++ code asks for no newer symbol version (PEP 600, auditwheel's policy).
NEEDED_GLIBCXX = (3, 4, 24)
# libcudnn opens its parts itself, by name: these come from LD_LIBRARY_PATH even when libcudnn did not.
PARTS = re.compile(r"libcudnn_\w+\.so\.")
FAMILY = re.compile(
    r"(lib(?:cudart|cublas|cublasLt|cudnn|nccl|nvJitLink|nvrtc|cusparse|cusolver|cufft|curand))\.so\.(\d+)"
)
NUMBERED = re.compile(r"\.so\.(\d+\.\d+\.\d+)")
SHOWN = 3


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Looks into the folders that the variables name; a folder without such libraries is as good as none."""
    versions = installed(host)
    findings: list[Finding] = []
    for folder in filter(None, host.environ.get(PATH, "").split(":")):
        if os.path.abspath(folder) not in {os.path.dirname(path) for path in versions.values()}:
            findings += in_folder(host, folder, versions)
    for entry in filter(None, re.split(r"[: ]+", host.environ.get(PRELOAD, ""))):
        findings += preloaded(host, entry, versions)
    return findings or [ok("the linker finds the installed libraries first")]


def installed(host: Host) -> dict[str, str]:
    """{file name: path} of the libraries that came with the CUDA packages."""
    root = f"{host.site_packages()}/nvidia"
    names = {path.split("/")[-1]: path for path in host.libraries_below(root)} if host.exists(root) else {}
    return {name: path for name, path in names.items() if FAMILY.match(name) or PARTS.match(name)}


def others(host: Host, paths: Mapping[str, str], versions: Mapping[str, str]) -> Iterator[str]:
    """Names of those that stand for an installed library and are not known to be the same release."""
    for name, path in paths.items():
        family = FAMILY.match(name)
        if name in versions:
            real = host.real_path(path)
            release = NUMBERED.search(os.path.basename(real))
            if real != host.real_path(versions[name]) and not is_same_release(
                release and release[1], versions[name], host
            ):
                yield name
        elif family and is_other_major(family, versions):
            yield name


def is_other_major(family: re.Match[str], versions: Mapping[str, str]) -> bool:
    """True for a CUDA runtime of another major release than the installed one (libcudart.so.11.0 beside .so.12)."""
    majors = {match[2] for name in versions if (match := FAMILY.match(name)) and match[1] == family[1]}
    return family[1] == "libcudart" and bool(majors) and family[2] not in majors


def is_same_release(release: str | None, path: str, host: Host) -> bool:
    """True where the package that `path` belongs to has this release: libcudart.so.12.8.90 of 12.8.90."""
    part = path.rsplit("/", 3)[1].replace("_", "-")
    versions = [
        distribution.version for distribution in host.distributions() if distribution.name.startswith(f"nvidia-{part}")
    ]
    return release is not None and any(f"{version}.".startswith(f"{release}.") for version in versions)


def in_folder(host: Host, folder: str, versions: Mapping[str, str]) -> list[Finding]:
    """What a folder of LD_LIBRARY_PATH puts in place of an installed library."""
    paths = {name: os.path.join(folder, name) for name in host.libraries_in(folder)}
    remedy = f"unset {PATH}"
    findings: list[Finding] = []
    if CXX in paths and (old := too_old(host, paths[CXX])):
        findings.append(error(f"{PATH} puts {paths[CXX]} first, {old}", remedy=remedy))
    paths_of_others = sorted(set(others(host, paths, versions)))
    if parts := [name for name in paths_of_others if PARTS.match(name)]:
        what = f"{PATH} puts another {parts[0]} before the installed one: {folder}"
        findings.append(error(what, remedy=remedy))
    elif paths_of_others:
        what = (
            f"{PATH} leads to other CUDA libraries than the installed: "
            f"{folder} has {some_of(paths_of_others, most=SHOWN)}"
        )
        findings.append(warning(what, remedy=remedy))
    return findings


def preloaded(host: Host, entry: str, versions: Mapping[str, str]) -> list[Finding]:
    """What is loaded into every process before anything else."""
    name, remedy = os.path.basename(entry), f"unset {PRELOAD}"
    if entry.startswith("/") and not host.exists(entry):
        return [warning(f"{PRELOAD} names {entry}, which does not exist", remedy=remedy)]
    if name == CXX and (old := too_old(host, entry)):
        return [error(f"{PRELOAD} loads {entry} first, {old}", remedy=remedy)]
    if FAMILY.match(name) and host.real_path(entry) not in {host.real_path(path) for path in versions.values()}:
        return [error(f"{PRELOAD} loads a second {name} into every process: {entry}", remedy=remedy)]
    return []


def too_old(host: Host, path: str) -> str | None:
    """In words, where this C++ library lacks what the wheels were linked against."""
    newest = host.newest_in(path, ["GLIBCXX_"])["GLIBCXX_"] if host.exists(path) else ()
    if newest >= NEEDED_GLIBCXX:
        return None
    version = ".".join(map(str, newest)) or "nothing"
    return f"which ends at GLIBCXX {version}; the packages need {'.'.join(map(str, NEEDED_GLIBCXX))}"


CHECK = Check(
    name="library-variables",
    group="packages",
    proves="No variable of the linker puts another CUDA or C++ library before the installed ones.",
    look=look,
)
