"""What the lock says, and the commands that bring packages back to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loradock.errors import InputMissing
from loradock.host import Host
from loradock.packages.findings import installers
from loradock.packages.lock import IMAGE_PREFIX, find_lock, read_lock

MOST_NAMED = 5
ANOTHER_IMAGE = "loradock build"


def locked_versions(host: Host) -> dict[str, str]:
    """{package: version} of the lock; empty where there is none."""
    try:
        locked = read_lock(find_lock(host.prefix()), python_version=host.python())
    except InputMissing:
        return {}
    return {name: each.version for name, each in locked.items()}


def reinstall(prefix: Path, versions: Mapping[str, str], *, lock: Path | None = None) -> str:
    """Install these packages anew ("" for any version); where they are many and there is a lock, all of it."""
    if prefix == IMAGE_PREFIX:
        return ANOTHER_IMAGE
    install, _ = installers(prefix)
    if lock is not None and len(versions) > MOST_NAMED:
        return f"{install} --require-hashes -r {lock}"
    return f"{install} " + " ".join(f"{name}=={version}" if version else name for name, version in versions.items())


def uninstall(prefix: Path, name: str) -> str:
    """Take a package away."""
    return ANOTHER_IMAGE if prefix == IMAGE_PREFIX else f"{installers(prefix)[1]} {name}"
