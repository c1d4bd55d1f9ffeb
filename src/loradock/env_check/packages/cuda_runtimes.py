"""CUDA runtimes: what this process has loaded once torch, bitsandbytes and Triton are imported."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from loradock.env_check.base import LOADED, Check, Finding, Intent, error, lasting_warning, ok
from loradock.facts import Facts
from loradock.machine import Host

# A wheel that carries its own copy gives it a hash: libcudart-d0da41ae.so.11.0.
FAMILY = re.compile(
    r"(lib(?:cudart|cublas|cublasLt|cudnn|nccl|nvJitLink|nvrtc|cusparse|cusolver|cufft))(?:-[0-9a-f]{8})?\.so"
)
IMPORTED = ("torch", "bitsandbytes", "triton")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Imports what a run imports, then reads the map of this process."""
    names = {distribution.name for distribution in host.distributions()}
    for module in IMPORTED:
        if module in names and (why := host.import_failure(module)):
            return [error(f"{module} cannot be imported: {why}", remedy="loradock env-check --only libraries,builds")]
    site = f"{host.site_packages()}/nvidia"
    # As the kernel writes its map: a virtual environment may lie behind a link.
    libraries = [host.real_path(library) for library in host.libraries_below(site)] if host.exists(site) else []
    return judge(families(host.loaded_libraries()), own=libraries, environ=host.environ)


def families(paths: Sequence[str]) -> dict[str, list[str]]:
    """{library without its version: the files loaded for it}."""
    paths_of: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        if match := FAMILY.match(os.path.basename(path)):
            paths_of[match[1]].append(path)
    return dict(paths_of)


def judge(loaded: Mapping[str, Sequence[str]], *, own: Sequence[str], environ: Mapping[str, str]) -> list[Finding]:
    """Two of one library keep two states in one process; one from elsewhere is not the one that was locked."""
    findings: list[Finding] = []
    for name, paths in loaded.items():
        of_packages = [path for path in own if (match := FAMILY.match(os.path.basename(path))) and match[1] == name]
        strangers = [path for path in paths if path not in of_packages]
        if len(paths) > 1:
            what = f"this process has {len(paths)} copies of {name}: {' and '.join(paths)}"
            findings.append(error(what, remedy=remedy_for(strangers or paths, environ)))
        elif strangers and of_packages:
            what = f"{name} is loaded from {strangers[0]}, not from the installed {of_packages[0]}"
            findings.append(lasting_warning(what, remedy=remedy_for(strangers, environ)))
    if findings:
        return findings
    if not loaded:
        return [ok("no CUDA library is loaded, and none is needed")]
    return [ok(f"one copy of each of {len(loaded)} CUDA libraries is loaded")]


def remedy_for(paths: Sequence[str], environ: Mapping[str, str]) -> str:
    """The variable that led to one of these files; without one, the commands that look for another way in."""
    for path in paths:
        if path in re.split(r"[: ]+", environ.get("LD_PRELOAD", "")):
            return "unset LD_PRELOAD"
        if os.path.dirname(path) in environ.get("LD_LIBRARY_PATH", "").split(":"):
            return "unset LD_LIBRARY_PATH"
    return "loradock env-check --only library-variables,cuda-packages,lock"


CHECK = Check(
    name="cuda-runtimes",
    group="packages",
    level="compute",
    limit_seconds=90,
    proves="torch, bitsandbytes and Triton load the same copy of each CUDA library in one process.",
    look=look,
    depends_on=LOADED,
)
