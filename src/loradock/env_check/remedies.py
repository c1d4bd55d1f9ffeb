"""Commands that fix: packages as the lock has them, another setting, other GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from loradock.errors import InputMissing
from loradock.machine import Host
from loradock.machine.lockfile.findings import installers
from loradock.machine.lockfile.pins import IMAGE_PREFIX, find_lock, read_lock

MOST_NAMED = 5
ANOTHER_IMAGE = "loradock build"
VISIBLE = "CUDA_VISIBLE_DEVICES"
SETTING = re.compile(r"--set ([a-z][\w.]*=(?:\[[^\]]*\]|[^\s,]+)) ?")


def locked_versions(host: Host) -> dict[str, str]:
    """{package: version} of the lock; empty where there is none."""
    try:
        locked = read_lock(find_lock(host.prefix()), python_version=host.python())
    except InputMissing:
        return {}
    return {name: requirement.version for name, requirement in locked.items()}


def reinstall(prefix: Path, versions: Mapping[str, str], *, lock: Path | None = None) -> str:
    """Install these packages again ("" for any version); where they are many and there is a lock, all of it."""
    if prefix == IMAGE_PREFIX:
        return ANOTHER_IMAGE
    install, _ = installers(prefix)
    if lock is not None and len(versions) > MOST_NAMED:
        return f"{install} --require-hashes -r {lock}"
    return f"{install} " + " ".join(f"{name}=={version}" if version else name for name, version in versions.items())


def uninstall(prefix: Path, name: str) -> str:
    """Take a package away."""
    return ANOTHER_IMAGE if prefix == IMAGE_PREFIX else f"{installers(prefix)[1]} {name}"


def as_locked(host: Host, *names: str) -> str:
    """Install packages again: as the lock has them, what it does not have in the version that is installed."""
    versions = {distribution.name: distribution.version for distribution in host.distributions()} | locked_versions(
        host
    )
    return reinstall(host.prefix(), {name: versions.get(name, "") for name in names})


def train_with(*settings: str) -> str:
    """The run once more with `key=value` settings; `...` stands for the rest of the user's own command."""
    return " ".join(["loradock train", *(f"--set {shlex.quote(setting)}" for setting in settings), "..."])


def from_hint(hint: str | None) -> str | None:
    """The command with the settings, side by side, that an error's hint begins with; None where it begins otherwise."""
    settings, end = [], 0
    while match := SETTING.match(hint or "", end):
        settings, end = [*settings, match[1]], match.end()
    return train_with(*settings) if settings else None


def showing(gpus: Sequence[int], environ: Mapping[str, str]) -> str:
    """Leave a run these GPUs alone; they are counted as this process sees them."""
    entries = [part.strip() for part in environ.get(VISIBLE, "").split(",") if part.strip()]
    return f"export {VISIBLE}=" + ",".join(entries[gpu] if gpu < len(entries) else str(gpu) for gpu in gpus)
