"""A light checkout: the real Dockerfile and its scripts with a lock of a few small packages, so that it builds fast."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What `loradock --version` imports, what builds loradock itself, and what proves an environment.
PACKAGES = (
    "annotated-types", "click", "markdown-it-py", "mdurl", "packaging", "pydantic", "pydantic-core", "pygments",
    "pyyaml", "rich", "setuptools", "typing-extensions", "typing-inspection",
)  # fmt: skip


def light_lock(lock: str) -> str:
    """The entries of PACKAGES, with their hashes."""
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(line for line in lock.splitlines() if not line.startswith("#")))
    kept = [entry for entry in entries if entry.strip().partition("==")[0] in PACKAGES]
    return "\n".join(entry.strip("\n") for entry in kept) + "\n"


def light_checkout(folder: Path) -> Path:
    """Copy what the image is built from to `folder`, with the light lock."""
    folder.mkdir(parents=True)
    for name in ("Dockerfile", ".dockerignore", "entrypoint", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder / name)
    for name in ("docker", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    lock = folder / "docker" / "requirements.lock"
    lock.write_text(light_lock(lock.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "docker" / "requirements-dev.lock").unlink()
    return folder
