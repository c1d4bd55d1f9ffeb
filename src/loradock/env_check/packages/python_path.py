"""The module path: whether something is imported in place of what is installed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host
from loradock.text.amounts import some_of

# Another copy of one of these, and a run is not what its lock and its record say.
TRAINING = frozenset(
    {
        *("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "tokenizers"),
        *("safetensors", "triton", "numpy", "pyarrow", "flash_attn", "liger_kernel", "huggingface_hub"),
        *("google", "google.protobuf"),
    }
)
# Folders without an __init__, to which every entry of the path may add; the first one wins for each module in them.
NAMESPACES = ("google", "nvidia")
SHOWN = 3


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Folders before the site-packages are looked into for modules of the same name; .pth files add behind them."""
    site, standard = str(host.site_packages()), str(host.standard_library())
    entries = host.module_path()
    installed = offered(host, site) | set(NAMESPACES)
    findings: list[Finding] = []
    for place, folder in enumerate(entries[: entries.index(site)] if site in entries else ()):
        if not folder.startswith(standard):
            library = host.modules_in(standard) if standard in entries[place:] else frozenset()
            hidden = shadowed(offered(host, folder), installed | library)
            findings += judge(hidden, folder=folder, source=source_of(folder, host.environ))
    findings += started(host.starters().values(), standard=standard)
    if home := host.environ.get("PYTHONHOME"):
        what = f"PYTHONHOME is {home}: other Python processes of a run load their standard library from there"
        findings.append(warning(what, remedy="unset PYTHONHOME"))
    return findings or [ok("modules come from the standard library and the installed packages")]


def offered(host: Host, folder: str) -> frozenset[str]:
    """Modules of a folder of the path, and those of the namespaces in it."""
    inner = {f"{name}.{module}" for name in NAMESPACES for module in host.modules_in(f"{folder}/{name}")}
    return host.modules_in(folder) | inner


def shadowed(modules: frozenset[str], conflicts: frozenset[str]) -> list[str]:
    """What a folder offers in place of another module: packages of the training stack first, then by name."""
    return sorted(modules & conflicts, key=lambda name: (name not in TRAINING, name))


def source_of(folder: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """What put a folder on the module path, and how to take it off."""
    if folder in [os.path.abspath(part) for part in environ.get("PYTHONPATH", "").split(":") if part]:
        return "PYTHONPATH puts", "unset PYTHONPATH"
    if folder.endswith("/site-packages"):
        return "the user's own site-packages put", "export PYTHONNOUSERSITE=1"
    return "a start-up file puts", f"python -v -c '' 2>&1 | grep -F {shlex.quote(folder)}"


def judge(hidden: Sequence[str], *, folder: str, source: tuple[str, str]) -> list[Finding]:
    """One finding a folder, with how to take it off the path."""
    if not hidden:
        return []
    what = f"{source[0]} another {some_of(hidden, most=SHOWN)} before the installed one: {folder}"
    return [(error if TRAINING & set(hidden) else warning)(what, remedy=source[1])]


def started(starters: Iterable[str], *, standard: str) -> list[Finding]:
    """Code that Python runs unasked at each start; a distribution's own lies in the standard library's folder."""
    findings: list[Finding] = []
    for file in starters:
        if not Path(file).is_relative_to(standard):
            what = f"{file} runs at every start of Python, before anything else"
            findings.append(warning(what, remedy=f"mv {shlex.quote(file)} {shlex.quote(file + '.off')}"))
    return findings


CHECK = Check(
    name="python-path",
    group="packages",
    proves="Nothing on the module path shadows an installed package.",
    look=look,
)
