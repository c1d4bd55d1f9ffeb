"""Libraries: each .so that the installed native code needs, or opens by name, is there."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok
from loradock.env_check.remedies import locked_versions, reinstall
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import SharedObject

ROOTS = ("torch", "triton", "bitsandbytes", "nvidia", "numpy", "pyarrow", "tokenizers", "safetensors", "sentencepiece")
MODULES = re.compile(r"flash_attn_2_cuda.*\.so")
OWNERS = re.compile(r"torch|triton|bitsandbytes|nvidia-.*-cu\d+")
# These come with the driver, and with the container runtime; the gpu group looks for them where there is a GPU.
DRIVER = re.compile(r"libcuda\.so|libnvidia-|libnvcuvid\.so|libnvoptix\.so")
# Plugins for networks and launchers that a machine may lack (nvshmem, cuFile), tools for profilers and debuggers, and
# bitsandbytes for other GPUs or another CUDA, of which one at most is loaded.
PLUGINS = re.compile(
    r"nvshmem_(bootstrap|transport)_|libcufile_rdma|libnvperf_|libpcsamplingutil|libcheckpoint|libcusolverMg|libnvblas"
    r"|libbitsandbytes_(?!cpu)"
)
SHARED = re.compile(r"\.so(\.[\w.]+)?$")
SYSTEM = {
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libgomp.so.1": "libgomp1",
    "libz.so.1": "zlib1g",
    "libnuma.so.1": "libnuma1",
    "libatomic.so.1": "libatomic1",
}
SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the linker looks besides the folders that a library names itself."""

    variable: tuple[str, ...]
    system: Mapping[str, str]


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Reads the dynamic section of each library, loads none."""
    site = str(host.site_packages())
    files = [path for root in ROOTS for path in host.libraries_below(f"{site}/{root}")]
    files += [f"{site}/{name}" for name in host.libraries_in(site) if MODULES.fullmatch(name)]
    objects = [
        library for path in files if not PLUGINS.match(os.path.basename(path)) and (library := host.shared_object(path))
    ]
    variable = tuple(filter(None, host.environ.get("LD_LIBRARY_PATH", "").split(":")))
    places = Places(variable=variable, system=host.system_libraries())
    lacking = unresolved(objects, places, host)
    owned = recorded(host)
    missing = {path: owner for path, owner in owned.items() if not host.exists(path)}
    for path in missing:
        lacking.setdefault(os.path.basename(path), [])
    if not lacking:
        return [ok(f"all libraries that {len(objects)} native libraries need were found")]
    owners = {os.path.basename(path): owner for path, owner in owned.items()}
    return judge(lacking, owners, host)


def unresolved(objects: Collection[SharedObject], places: Places, host: Host) -> dict[str, list[str]]:
    """{name of a library: files that need it and find it nowhere}.

    A library that another one has loaded already is found by its name, so what lies in the environment's own library
    folders that torch leads to counts as found.
    """
    loaded = {
        os.path.basename(path) for library in objects for path in resolved(library, places, host).values() if path
    }
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for library in objects:
        for name, path in resolved(library, places, host).items():
            if path is None and name not in loaded and not DRIVER.match(name):
                missing[name].append(library.path)
    return dict(missing)


def resolved(library: SharedObject, places: Places, host: Host) -> dict[str, str | None]:
    """{name that it needs: the file that the linker takes, or None}. Order: ld.so(8)."""
    origin = os.path.dirname(library.path)

    def own(folders: Iterable[str]) -> list[str]:
        return [re.sub(r"\$ORIGIN|\$\{ORIGIN\}", origin, folder) for folder in folders]

    rpath_libraries = [] if library.runpath else own(library.rpath)
    folders = [*rpath_libraries, *places.variable, *own(library.runpath)]
    found_paths: dict[str, str | None] = {}
    for name in library.needed:
        paths = (f"{folder}/{name}" for folder in folders)
        found_paths[name] = next((path for path in paths if host.exists(path)), places.system.get(name))
    return found_paths


def recorded(host: Host) -> dict[str, str]:
    """{path of a library that a run may open: package} by each RECORD, also of what is gone."""
    return {
        path: distribution.name
        for distribution in host.distributions()
        if OWNERS.fullmatch(distribution.name)
        for path in host.files_of(distribution)
        if SHARED.search(path) and not PLUGINS.match(os.path.basename(path)) and "/backends/amd/" not in path
    }


def judge(lacking: Mapping[str, list[str]], owners: Mapping[str, str], host: Host) -> list[Finding]:
    """A finding for each library that is missing, those that others need first."""
    versions = locked_versions(host)
    findings: list[Finding] = []
    for name, by in sorted(lacking.items(), key=lambda finding: (not finding[1], finding[0])):
        needs = f"{os.path.basename(by[0])} needs it" if by else f"it is a file of {owners.get(name)}"
        more = f" and {len(by) - 1} more do" if len(by) > 1 else ""
        if owner := owners.get(name):
            remedy = reinstall(host.prefix(), {owner: versions.get(owner, "")})
        else:
            remedy = f"apt-get install -y {SYSTEM[name]}" if name in SYSTEM else f"ldd {shlex.quote(by[0])}"
        findings.append(error(f"{name} is missing: {needs}{more}", remedy=remedy))
    if surplus := findings[SHOWN + 1 :]:
        what = f"{len(surplus) + 1} more libraries are missing"
        findings = [*findings[:SHOWN], error(what, remedy="loradock lock verify")]
    return findings


CHECK = Check(
    name="libraries",
    group="packages",
    level="compute",
    limit_seconds=30,
    proves="Every shared library that the installed native code needs, or opens by name, is found.",
    look=look,
    depends_on=LOADED,
)
