"""Facts: what the machine is. Types only, so that pure rooms can read them; `probe.py` gathers them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card. `capability` is the compute capability, (8, 0) for an A100."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The machine as a run sees it: limits of its cgroup, not of the host beneath."""

    platform: str
    python: str
    cpus: int
    memory_bytes: int
    in_container: bool
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    git_commit: str | None = None

    @property
    def has_gpu(self) -> bool:
        """True where at least one card is visible to this process."""
        return bool(self.gpus)
