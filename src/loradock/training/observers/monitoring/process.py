"""What this process and its data workers take of the machine, from /proc; a file that is not there leaves its part out.

Memory is the resident set, which counts pages that a worker shares with its parent twice.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Protocol

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Files(Protocol):
    """The part of `Host` that is needed."""

    def read_text(self, path: str) -> str | None:
        """The text of a file, or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums since the beginning of each process: CPU seconds, bytes read from disks; and the machine's CPU seconds."""

    at: float
    cpu_seconds: float | None
    read_bytes: int | None
    machine_busy_seconds: float | None
    machine_seconds: float | None
    processes: tuple[int, ...]
    rss_bytes: int | None


class ProcessReader:
    """Samples of one process with its children, each over the time since the one before. `cpus`: what it may use."""

    def __init__(self, host: Files, *, pid: int, cpus: int) -> None:
        self.host = host
        self.pid = pid
        self.cpus = cpus
        self.before = self.counters()

    def sample(self) -> dict[str, Any]:
        """`cpu_share` is of the CPUs that it may use, `machine_cpu_share` of all of them; and `rss_bytes`, `workers`
        (how many), `read_bytes_per_second`.
        """
        before, now = self.before, self.counters()
        self.before = now
        seconds = max(1e-6, now.at - before.at)
        read, cpu = grown(before.read_bytes, now.read_bytes), grown(before.cpu_seconds, now.cpu_seconds)
        machine = grown(before.machine_seconds, now.machine_seconds)
        busy = grown(before.machine_busy_seconds, now.machine_busy_seconds)
        found = {
            "cpu_share": None if cpu is None else min(1.0, cpu / seconds / self.cpus),
            "machine_cpu_share": min(1.0, busy / machine) if busy is not None and machine else None,
            "rss_bytes": now.rss_bytes,
            "workers": len(now.processes) - 1,
            "read_bytes_per_second": None if read is None else read / seconds,
        }
        return {name: value for name, value in found.items() if value is not None}

    def counters(self) -> Counters:
        """Where all counts stand now."""
        pids = (self.pid, *self.children())
        cpu = [self.cpu_seconds(pid) for pid in pids]
        read = [self.read_bytes(pid) for pid in pids]
        rss = [self.rss_bytes(pid) for pid in pids]
        busy, machine = self.machine_seconds()
        return Counters(
            at=time.monotonic(),
            cpu_seconds=added(cpu),
            read_bytes=added(read),
            machine_busy_seconds=busy,
            machine_seconds=machine,
            processes=pids,
            rss_bytes=added(rss),
        )

    def children(self) -> list[int]:
        """The processes that the main thread started: data workers."""
        text = self.host.read_text(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in (text or "").split()]

    def cpu_seconds(self, pid: int) -> float | None:
        """Seconds of CPU that a process has had, in user mode and in the kernel."""
        fields = (self.host.read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS if len(fields) > 12 else None

    def rss_bytes(self, pid: int) -> int | None:
        """Its resident set."""
        fields = (self.host.read_text(f"/proc/{pid}/statm") or "").split()
        return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else None

    def read_bytes(self, pid: int) -> int | None:
        """Bytes that it had a disk read; what came from the page cache is not among them."""
        for line in (self.host.read_text(f"/proc/{pid}/io") or "").splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
        return None

    def machine_seconds(self) -> tuple[float | None, float | None]:
        """(busy, all) CPU seconds of the machine; waiting for a disk counts as idle."""
        first = (self.host.read_text("/proc/stat") or "").partition("\n")[0].split()
        if len(first) < 6 or first[0] != "cpu":
            return None, None
        ticks = [int(each) for each in first[1:9]]  # what guests take is counted in user time already
        return (sum(ticks) - ticks[3] - ticks[4]) / TICKS, sum(ticks) / TICKS


def added(values: list[Any]) -> Any:
    """The sum of what is known; None where this process's own is not. A worker may be gone meanwhile."""
    return None if values[0] is None else sum(value for value in values if value is not None)


def grown(before: float | None, now: float | None) -> float | None:
    """The growth; none where a worker ended and took its count along."""
    return None if before is None or now is None else max(0.0, now - before)
