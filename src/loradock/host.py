"""The only door to the machine: files under /proc and /sys, the environment, processes, packages and cards.

Everything that asks what this machine is goes through a `Host`, so that a test can hand in another one.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loradock.facts import Gpu


class Host:
    """The real machine."""

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

    def gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        """The cards that this process may use, in CUDA's order for it, and the driver's version; () where none."""
        try:
            import pynvml
        except ImportError:
            return (), None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return (), None
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            names = [(str(index), pynvml.nvmlDeviceGetUUID(handle)) for index, handle in enumerate(handles)]
            chosen = [handles[index] for index in visible(names, self.environ.get("CUDA_VISIBLE_DEVICES"))]
            cards = tuple(
                Gpu(
                    name=pynvml.nvmlDeviceGetName(handle),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    capability=pynvml.nvmlDeviceGetCudaComputeCapability(handle),
                )
                for handle in chosen
            )
            return cards, pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()


def visible(names: Sequence[tuple[str, str]], wanted: str | None) -> list[int]:
    """Positions of the cards that CUDA_VISIBLE_DEVICES leaves, in its order.

    `names` holds each card's index and UUID. As in CUDA, an entry is an index or the beginning of a UUID, and the
    first entry that names no card ends the list.
    """
    if wanted is None:
        return list(range(len(names)))
    found: list[int] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = [i for i, (index, uuid) in enumerate(names) if entry and (entry == index or uuid.startswith(entry))]
        if not match:
            break
        found.append(match[0])
    return found
