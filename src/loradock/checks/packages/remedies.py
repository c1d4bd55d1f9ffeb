"""Commands that bring packages back to what the lock says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loradock.packages.findings import installers
from loradock.packages.lock import IMAGE_PREFIX

MOST_NAMED = 5
ANOTHER_IMAGE = "loradock build"


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
