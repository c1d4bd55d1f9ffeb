"""Disk: writing with fsync and reading back in the folders of output and cache."""

from __future__ import annotations

import errno
import statistics
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.errors import DiskFull, NotWritable
from loradock.facts import Facts
from loradock.machine import Host

SIZE_BYTES = 64 << 20
ROUNDS = 3
FLOOR_MB_PER_SECOND = 20
OTHER = {"output": "loradock train --output DIR ...", "cache": "loradock train --set data.cache=DIR ..."}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Output and cache in turns. A folder that is still to be made is measured where it will be made."""
    folders = {"output": plan.output, "cache": plan.cache}
    durations: dict[str, list[tuple[float, float]]] = {role: [] for role in folders}
    for _ in range(ROUNDS):
        for role, folder in folders.items():
            try:
                durations[role].append(host.disk_seconds(host.nearest(folder), size_bytes=SIZE_BYTES))
            except OSError as failure:
                return [refused(role, folder, failure)]
    rates = {
        f"{role}_{way}_mb_per_second": round(SIZE_BYTES / 1e6 / statistics.median(times[place] for times in seconds), 1)
        for role, seconds in durations.items()
        for place, way in enumerate(("write", "read"))
    }
    return [judge(rates)]


def judge(rates: dict[str, float]) -> Finding:
    """Slow is what makes a run wait for its checkpoints: nothing is published about a disk that nobody named."""
    slow = sorted({key.split("_")[0] for key, rate in rates.items() if "_write_" in key and rate < FLOOR_MB_PER_SECOND})
    if slow:
        return warning(
            f"{' and '.join(slow)}: less than {FLOOR_MB_PER_SECOND} MB/s are written, so saving "
            "checkpoints slows the run",
            remedy=OTHER["output" if "output" in slow else "cache"],
            **rates,
        )
    return ok("output and cache: measured; there is no published figure for this disk", **rates)


def refused(role: str, folder: Path, failure: OSError) -> Finding:
    """The disk is full, or the folder may not be written."""
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"{role} ({folder}) has no space for a file of {SIZE_BYTES >> 20} MiB"
        return error(what, remedy=OTHER[role], ends=DiskFull)
    what = f"{role} ({folder}) cannot be written: {failure.strerror}"
    return error(what, remedy=OTHER[role], ends=NotWritable)


CHECK = Check(
    name="disk",
    group="bench",
    proves="Output and cache take 20 MB/s or more onto the disk.",
    look=look,
    level="bench",
    limit_seconds=120,
)
