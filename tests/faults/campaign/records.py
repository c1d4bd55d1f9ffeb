"""The lines that trials leave, one JSON line each with the commit, in bench/results/reliability/.

A trial is appended to PROMISE.jsonl as soon as it is over; where the page is made, all lines move into one compressed
file, PACKED.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import lzma
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "bench" / "results" / "reliability"

PACKED = "trials.jsonl.xz"

Line = dict[str, Any]


@cache
def commit() -> str:
    """The short commit of this tree; `-dirty` where src/ differs from it, `unknown` outside a repository."""
    head = _git("rev-parse", "--short", "HEAD")
    if head is None:
        return "unknown"
    return f"{head}-dirty" if _git("status", "--porcelain", "--", "src") else head


def append(line: Line, *, place: Path = PLACE) -> Line:
    """Add the commit and the date, and append to the promise's file in one write; returns the whole line."""
    whole = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"), **line}
    place.mkdir(parents=True, exist_ok=True)
    while True:
        with (place / f"{line['promise']}.jsonl").open("a", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if os.fstat(stream.fileno()).st_nlink:  # else it was packed while this process waited for the lock
                stream.write(json.dumps(whole).replace(f"{ROOT}/", "") + "\n")
                return whole


def lines(promise: str, *, place: Path = PLACE) -> list[Line]:
    """The lines of a promise in the order of their first writing; a trial made again counts once, as last seen."""
    file = place / f"{promise}.jsonl"
    texts = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    appended = [json.loads(text) for text in texts if text.endswith("}")]
    return list({key(line): line for line in [*packed(place).get(promise, []), *appended]}.values())


@lru_cache(maxsize=1)
def _unpacked(file: Path, _modified: int) -> dict[str, list[Line]]:
    by_promise: dict[str, list[Line]] = {}
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        for line in map(json.loads, stream):
            by_promise.setdefault(line["promise"], []).append(line)
    return by_promise


def packed(place: Path) -> dict[str, list[Line]]:
    """The compressed lines by their promise."""
    file = place / PACKED
    return _unpacked(file, file.stat().st_mtime_ns) if file.exists() else {}


def pack(place: Path = PLACE) -> None:
    """Move all lines into the compressed file, whole or not at all; a campaign that still appends is waited for."""
    files = sorted(place.glob("P*.jsonl"))
    with contextlib.ExitStack() as locks:
        for file in files:
            fcntl.flock(locks.enter_context(file.open("a")), fcntl.LOCK_EX)
        promises = {*packed(place), *(file.stem for file in files)}
        every = [line for promise in sorted(promises) for line in lines(promise, place=place)]
        if files:
            staged = place / f".{PACKED}"
            staged.write_bytes(lzma.compress("".join(json.dumps(line) + "\n" for line in every).encode()))
            os.replace(staged, place / PACKED)
        for file in files:
            file.unlink()


def key(line: Line) -> tuple[str, ...]:
    """What makes two lines the same trial."""
    return line["commit"], line["subject"], line.get("engine", ""), str(line["trial"])


def of_last_run(found: Iterable[Line], *, target: int) -> list[Line]:
    """The lines of the newest commit that reached the target count, else of the newest commit."""
    by_commit: dict[str, list[Line]] = {}
    for line in found:
        by_commit.setdefault(line["commit"], []).append(line)
    newest_first = list(by_commit.values())[::-1]
    return next((run for run in newest_first if counted(run) >= target), newest_first[0] if newest_first else [])


def counted(run: Iterable[Line]) -> int:
    """How many trials the lines stand for; one line may stand for many (`count`)."""
    return sum(line.get("count", 1) for line in run)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
