"""What is known beforehand, from tables: the CUDA of the locked torch, GPUs' peaks, Xid numbers."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from loradock.plan import gpu_table
from loradock.plan.gpu_table import NamedGpu


def table(name: str) -> dict[str, Any]:
    """The content of `data/NAME.json`."""
    text = resources.files("loradock.env_check").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The CUDA that the locked torch is built for: its architectures, and the oldest driver that runs it.

    `driver_cuda` is that driver's answer to cuDriverGetVersion, `driver` its own version.
    """

    cuda: str
    architectures: tuple[tuple[int, int], ...]
    driver_cuda: int
    driver: str

    def serves(self, capability: tuple[int, int]) -> bool:
        """True where there is code for this GPU: compiled for its major version, and no newer minor one."""
        return any(major == capability[0] and minor <= capability[1] for major, minor in self.architectures)


@functools.cache
def runtime() -> Runtime:
    """That of the lock."""
    content = table("cuda")
    return Runtime(
        cuda=content["cuda"],
        architectures=tuple((int(name[3:-1]), int(name[-1])) for name in content["architectures"]),
        driver_cuda=content["driver_cuda"],
        driver=content["driver"],
    )


def xids() -> dict[int, str]:
    """What the Xid numbers mean that tell of a GPU, not of a program."""
    return {int(number): meaning for number, meaning in table("xids")["xids"].items()}


def peak(name: str) -> NamedGpu | None:
    """The published figures of the GPU of this name, as NVML writes it; None where it is not in the table."""
    return gpu_table.known_as(name)
