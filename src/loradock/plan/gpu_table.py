"""Named GPUs: what is published of each, in `gpus.json`, so that plans are made and speeds judged without one.

To add a GPU: a row in `gpus.json` with the source of its figures; `about` there says what each means.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from loradock.errors import UsageError
from loradock.facts import Gpu
from loradock.text.suggest import nearest, sentence

FIRST_FLASH = (8, 0)
"""The first compute capability that FlashAttention-2 has kernels for."""
UNKNOWN_GPU = "a100-40"
"""A GPU that is not in the table is taken to relate products, traffic and launches as this one does."""
# In a name: a slice of a GPU, or another one than its sister without the word.
VARIANT = re.compile(r"mig|grid|laptop|mobile|max|ti|super|d|nvl|\d+[abceq]")


@dataclass(frozen=True, kw_only=True)
class NamedGpu:
    """A GPU's published figures.

    `name` is what NVML calls it. `tflops`: dense tensor TFLOP/s of 16-bit inputs with 32-bit sums; `memory`, `pcie`:
    GB/s, one direction; `memory_mib`: as nvidia-smi shows it. `sustained`: the fraction of `tflops` that a long run of
    large products is assumed to reach. `floors`: what a healthy GPU passes of each figure, by the name of the check.
    """

    key: str
    name: str
    memory_mib: int
    capability: tuple[int, int]
    tflops: float
    memory: float
    pcie: float
    sustained: float
    floors: dict[str, float]
    source: str
    called: tuple[str, ...]
    words: tuple[str, ...]

    def as_gpu(self) -> Gpu:
        """The GPU as facts of a machine have it."""
        return Gpu(name=self.name, memory_bytes=self.memory_mib << 20, capability=self.capability)


@functools.cache
def table() -> tuple[NamedGpu, ...]:
    """All GPUs. Where one name fits several, the first is meant."""
    content = json.loads(resources.files("loradock.plan").joinpath("gpus.json").read_text(encoding="utf-8"))
    return tuple(_gpu(row, content) for row in content["gpus"])


def named(name: str) -> NamedGpu:
    """The GPU of this short name: a10, h200, 2080ti, a100-40; or the maker's: RTX 4090, NVIDIA_A10.

    UsageError, with what is near, for any other.
    """
    gpus = {bare(word): gpu for gpu in reversed(table()) for word in (gpu.key, gpu.name, *gpu.called)}
    query = bare(name)
    if query in gpus:
        return gpus[query]
    raise UsageError(f"unknown GPU: {name!r}", hint=_near(query))


def bare(name: str) -> str:
    """A GPU's name without its maker, its family and what stands between the words."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"nvidia|tesla|geforce|rtx", "", name.lower()))


def _near(query: str) -> str:
    """Those that begin so, the one that is spelt alike, or all."""
    keys = sorted(gpu.key for gpu in table())
    begin = [key for key in keys if query and bare(key).startswith(query)]
    if len(begin) > 1:
        return f"which one: {', '.join(begin)}?"
    spelt = {bare(key): key for key in keys}
    near = begin[0] if begin else spelt.get(nearest(query, spelt) or "")
    return sentence(near) if near else f"one of {', '.join(keys)}"


def known_as(name: str) -> NamedGpu | None:
    """The GPU of this name, as NVML writes it; None where it is not in the table.

    A part of a GPU (MIG, vGPU) and a variant (Laptop, Ti, D) have other figures than the GPU whose name they carry.
    """
    name_words = set(re.split(r"[\s-]+", name.lower()))
    for gpu in table():
        hints = {word.lower() for word in gpu.words}
        if hints <= name_words and not any(VARIANT.fullmatch(word) for word in name_words - hints):
            return gpu
    return None


def _gpu(row: dict[str, Any], content: dict[str, Any]) -> NamedGpu:
    major, minor = row["capability"]
    return NamedGpu(
        key=row["key"],
        name=row["name"],
        memory_mib=row["memory_mib"],
        capability=(major, minor),
        tflops=row["tflops"],
        memory=row["memory"],
        pcie=row["pcie"],
        sustained=row.get("sustained", content["sustained"]),
        floors={**content["floors"], "gemm": row.get("gemm_floor", content["floors"]["gemm"])},
        source=row["source"],
        called=tuple(row.get("called", ())),
        words=tuple(row["words"]),
    )
