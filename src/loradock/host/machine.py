"""The machine itself: files under /proc and /sys, the environment, processes, limits and installed packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Machine:
    """What every Linux machine answers."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of this process."""
        return os.environ

    def read_text(self, path: str) -> str | None:
        """The text of a file, or None where it does not exist or may not be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """True where the path exists."""
        return os.path.exists(path)

    def cpus_allowed(self) -> int:
        """CPUs that the scheduler lets this process use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def memory_bytes(self) -> int:
        """Physical memory of the machine in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def platform(self) -> str:
        """Kernel and architecture, as in Linux-6.1-x86_64."""
        return platform.platform()

    def python(self) -> str:
        """The version of the running Python."""
        return platform.python_version()

    def package_version(self, name: str) -> str | None:
        """The installed version of a distribution, or None."""
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def output_of(self, command: Sequence[str], *, timeout_seconds: float = 5.0) -> str | None:
        """What a command prints, stripped; None where it is missing, fails or takes too long."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()
