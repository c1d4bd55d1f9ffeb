"""The run record: `run.json` (what was asked, found, decided and how it ended) and `metrics.jsonl` (one line an event).

`run.json` is written when the run starts, again when something new is known, and when it ends, also by an error; each
time whole and by rename, so that a reader never sees half of it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loradock import __version__, durable
from loradock.config.schema import RunConfig
from loradock.directory import RECORD
from loradock.facts import Facts

BLOCK_BYTES = 1 << 22


class RunRecord:
    """The record of one run in its directory. A process other than rank 0 keeps one without writing it."""

    def __init__(
        self,
        directory: Path,
        *,
        config: RunConfig,
        origins: dict[str, str],
        facts: Facts,
        before: Mapping[str, Any] | None = None,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is the record of the run that this one continues; `fence` raises where another one took over."""
        self.directory = directory
        self.is_writing = facts.rank == 0
        self.fence = fence
        self.has_committed = False
        before = before or {}
        self.began = time.monotonic()
        self.hashing: dict[Path, Future[str]] = {}
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.content: dict[str, Any] = {
            "loradock": __version__,
            "run_id": before.get("run_id") or uuid.uuid4().hex,
            "status": "running",
            "started": before.get("started") or now(),
            "attempts": [*before.get("attempts", []), *([attempt(before)] if before else [])],
            "continued": now() if before else None,
            "config": config.model_dump(mode="json"),
            "origins": origins,
            "facts": asdict(facts),
            "timings_seconds": {},
            **({"fingerprint": before["fingerprint"]} if "fingerprint" in before else {}),
        }
        self.write()

    @property
    def run_id(self) -> str:
        """The name of this run and of no other, kept through every attempt."""
        return self.content["run_id"]

    def put(self, **parts: Any) -> None:
        """Add parts to run.json and write it."""
        self.content.update(parts)
        self.write()

    def timing(self, name: str, seconds: float) -> None:
        """Note how long a stage took; written with the next part."""
        self.content["timings_seconds"][name] = round(seconds, 3)

    def hash_weights(self, files: Sequence[Path]) -> None:
        """Start the sha256 of the base's weight files beside the run; `end` waits for it."""
        if self.is_writing:
            self.hashing = {file: self.pool.submit(sha256, file) for file in files}

    def metric(self, kind: str, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        if not self.is_writing:
            return
        self.fence()
        line = {"kind": kind, "time": now(), **values}
        with (self.directory / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def rewind(self, step: int) -> None:
        """Forget the metric lines after the step that a run resumes from; they are made again."""
        file = self.directory / "metrics.jsonl"
        if not self.is_writing or not file.exists():
            return
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a process that was killed may leave half a line
        durable.replace(file, "".join(line for line in whole if json.loads(line)["step"] <= step))

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind that were recorded so far, of this attempt and of those that it continues."""
        return metrics(self.directory, kind)

    def end(self, status: str, *, exit_code: int, error: str | None = None) -> None:
        """Write how the run ended; one that failed keeps everything that was known, and waits for one hash at most."""
        if status != "finished":
            for task in self.hashing.values():
                task.cancel()
        done = {file.name: task for file, task in self.hashing.items() if not task.cancelled()}
        self.content["weights_sha256"] = {name: task.result() for name, task in done.items() if not task.exception()}
        self.pool.shutdown()
        self.timing("total", time.monotonic() - self.began)
        self.put(status=status, exit_code=exit_code, error=error, ended=now())

    def write(self) -> None:
        """Write run.json by rename, flushed to the disk."""
        if not self.is_writing:
            return
        self.fence()
        durable.replace(self.directory / RECORD, json.dumps(self.content, indent=2, default=str) + "\n")


def metrics(directory: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl."""
    file = directory / "metrics.jsonl"
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [line for line in lines if line["kind"] == kind]


def attempt(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a later attempt keeps of the record of an earlier one; a killed one has no end."""
    began = record.get("continued") or record.get("started")
    ended = {key: record.get(key) for key in ("ended", "exit_code", "error", "resumed_from")}
    return {"started": began, "status": record.get("status"), **ended}


def sha256(file: Path) -> str:
    """The sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
