"""Gathers `Facts` through a host: the limits of this process's cgroup, the GPUs it may use, the packages it has."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from loradock.errors import EnvironmentUnfit
from loradock.facts import IMAGE_DIGEST, Facts
from loradock.machine import Host

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "triton",
    "liger-kernel",
    "flash-attn",
    "protobuf",
    "numpy",
    "loradock",
)
_V2 = {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = {*_V2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
LEVELS = {
    "x86-64-v4": {*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
    "x86-64-v2": _V2,
}
"""By the flags of /proc/cpuinfo; the highest first."""


def gather(host: Host) -> Facts:
    """Look at the machine once; takes milliseconds and imports no torch."""
    gpus, driver = host.gpus()
    versions = {name: host.package_version(name) for name in PACKAGES}
    return Facts(
        platform=host.platform(),
        python=host.python(),
        cpus=cpu_limit(host),
        memory_bytes=memory_limit(host),
        in_container=host.exists("/.dockerenv")
        or host.exists("/run/.containerenv")
        or "KUBERNETES_SERVICE_HOST" in host.environ,
        gpus=gpus,
        driver=driver,
        packages={name: version for name, version in versions.items() if version},
        world_size=of_launcher(host, "WORLD_SIZE", default=1),
        rank=of_launcher(host, "RANK", default=0),
        local_rank=of_launcher(host, "LOCAL_RANK", default=0),
        local_world_size=of_launcher(host, "LOCAL_WORLD_SIZE", default=0) or None,
        git_commit=git_commit(host),
        lock_sha256=lock_sha256(host),
        image_digest=host.environ.get(IMAGE_DIGEST) or None,
        instruction_set=instruction_set(host),
    )


def of_launcher(host: Host, name: str, *, default: int) -> int:
    """A whole number that torchrun sets; EnvironmentUnfit where something else stands there."""
    text = host.environ.get(name, str(default))
    if not text.isdecimal():
        raise EnvironmentUnfit(f"{name} is {text!r}, not a whole number", hint=f"unset {name}, or start with torchrun")
    return int(text)


def cpu_limit(host: Host) -> int:
    """CPUs of this cgroup and those above it (v1 and v2), at most those that the scheduler allows; at least 1."""
    return max(1, int(min([host.cpus_allowed(), *host.cpu_quotas()])))


def memory_limit(host: Host) -> int:
    """Memory of this cgroup and those above it in bytes (v1 and v2), at most the machine's."""
    limits = host.cgroup_values("memory", v2="memory.max", v1="memory.limit_in_bytes")
    return min([host.memory_bytes(), *limits])


def memory_free(host: Host) -> int:
    """Bytes that this process can still take: the least of what the machine and each cgroup around it leave.

    Of a cgroup, what it holds of files that nobody reads counts as free. 0 where nothing can be known.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB", host.read_text("/proc/meminfo") or "", re.MULTILINE)
    return max(0, min([int(available[1]) << 10 if available else 0, *host.cgroup_memory_free()]))


def instruction_set(host: Host) -> str:
    """The highest x86-64 level (System V ABI, micro-architecture levels) that the first CPU has; else its architecture.

    Kernels of torch, oneDNN and MKL are chosen by it, and add up in another order.
    """
    text = host.read_text("/proc/cpuinfo") or ""
    flags = set(next((line.partition(":")[2] for line in text.splitlines() if line.startswith("flags")), "").split())
    level = next((name for name, needed in LEVELS.items() if needed <= flags), None)
    return level or host.platform().rpartition(", ")[2]


def git_commit(host: Host) -> str | None:
    """The commit of the checkout that loradock runs from, or the one baked into the image; None elsewhere."""
    if baked := host.environ.get("LORADOCK_COMMIT"):
        return baked
    return host.output_of(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"])


def lock_sha256(host: Host) -> str | None:
    """The sha256 of the lock that the environment was made from; None where no lock lies beside the package."""
    lock = host.environ.get("LORADOCK_LOCK") or str(Path(__file__).parents[3] / "docker" / "requirements.lock")
    text = host.read_text(lock)
    return hashlib.sha256(text.encode()).hexdigest() if text else None
