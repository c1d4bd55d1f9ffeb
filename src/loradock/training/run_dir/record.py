"""The run record: `run.json` (what was asked, found, decided and how it ended) and `metrics.jsonl` (one line an event).

`run.json` is written when the run starts, again when something new is known, and when it ends, also by an error; each
time whole and by rename, so that a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

import loradock
from loradock import __version__
from loradock.config.schema import RunConfig
from loradock.errors import StorageError
from loradock.facts import Facts
from loradock.files import atomic_io, foreign_json, regular
from loradock.machine import library_variables
from loradock.process import streams
from loradock.training.run_dir import recorded
from loradock.training.run_dir.paths import METRICS, RECORD

BLOCK_BYTES = 1 << 22
HAVE_LOSS = ("train", "eval")
MEASURED = (
    "learning_rate", "tokens", "seconds", "perplexity", "in_batch_accuracy", "preference_accuracy", "reward_margin",
    "divergence", "expert_entropy", "unused_expert_share", "tokens_per_expert",
)  # fmt: skip
"""Numbers that a line may have, as `loss_NAME` of a validation set."""
MOST_STEPS = 1 << 53
MOST = 1e300


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
        """`before` is the record of the run that this one continues; `fence` raises where another one took over.

        What the run was asked stays as it was recorded until it is known that this one may continue it (`put`).
        """
        self.directory = directory
        self.is_writing = facts.rank == 0
        self.fence = fence
        self.has_committed = False
        before = before or {}
        self.finished = dict(before) if before.get("status") == "finished" else None
        self.facts_before: Mapping[str, Any] = before.get("facts") or {}
        self.began = time.monotonic()
        self.hashing: dict[Path, Future[str | None]] = {}
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.is_over = threading.Event()
        self.content: dict[str, Any] = {
            "loradock": __version__,
            "run_id": before.get("run_id") or uuid.uuid4().hex,
            "status": "running",
            "started": before.get("started") or now(),
            "attempts": [*before.get("attempts", []), *([attempt(before)] if before else [])],
            "continued": now() if before else None,
            "config": before.get("config") or config.model_dump(mode="json"),
            "working_directory": before.get("working_directory") or str(Path.cwd()),
            "origins": origins,
            "facts": asdict(facts),
            "environment": library_variables.recorded(os.environ),
            "code_sha256": code_sha256(),
            "timings_seconds": {},
            **{part: before[part] for part in ("fingerprint", "base", "alerts", "data") if part in before},
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

    def spent_before(self, stages: Mapping[str, float]) -> None:
        """Count what the process did before this record began, seconds by stage: the total is of the whole process."""
        for name, seconds in stages.items():
            self.timing(name, seconds)
        self.began -= sum(stages.values())

    def hash_weights(self, files: Sequence[Path]) -> None:
        """Start the sha256 of the base's weight files beside the run; `end` waits for it."""
        if self.is_writing:
            self.hashing = {file: self.pool.submit(sha256, file, unless=self.is_over) for file in files}

    def metric(self, kind: str, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        if not self.is_writing:
            return
        self.fence()
        line = {"kind": kind, "time": now(), **values}
        with (self.directory / METRICS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def rewind(self, step: int) -> int:
        """Forget the metric lines after the step that a run resumes from; they are made again.

        Returns how many others are gone, because they were damaged.
        """
        file = self.directory / METRICS
        if not self.is_writing or not file.exists():
            return 0
        with regular.opened(file) as stream:
            whole = sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
        found = parsed(file)
        atomic_io.replace(file, "".join(json.dumps(line) + "\n" for line in found if line["step"] <= step))
        return max(0, whole - len(found))

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind that were recorded so far, of this attempt and of those that it continues."""
        return metrics(self.directory, kind)

    def end(self, status: str, *, exit_code: int, error: str | None = None) -> None:
        """Write how the run ended; one that failed keeps everything that was known, and waits for no hash."""
        if status != "finished":
            self.is_over.set()
            for task in self.hashing.values():
                task.cancel()
        done = {file.name: task for file, task in self.hashing.items() if not task.cancelled()}
        digests = {name: task.result() for name, task in done.items() if not task.exception()}
        self.content["weights_sha256"] = {name: digest for name, digest in digests.items() if digest}
        self.pool.shutdown()
        self.timing("total", time.monotonic() - self.began)
        self.put(status=status, exit_code=exit_code, error=error, ended=now())

    def take_back(self) -> bool:
        """Put back the record of a run that was finished, and is refused to be continued; False where it was not."""
        if self.finished is None:
            return False
        self.pool.shutdown(cancel_futures=True)
        self.content = self.finished
        self.write()
        return True

    def write(self) -> None:
        """Write run.json by rename, flushed to the disk."""
        if not self.is_writing:
            return
        if unread := streams.lost():
            self.content["output_lost"] = unread
        put(self.directory, self.content, fence=self.fence)


def amend(directory: Path, parts: Mapping[str, Any], *, fence: Callable[[], None]) -> None:
    """Add parts to the record of a run that has ended. Raises what `recorded.read` and `fence` raise."""
    put(directory, {**recorded.read(directory), **parts}, fence=fence)


def put(directory: Path, content: Mapping[str, Any], *, fence: Callable[[], None]) -> None:
    """Write run.json, which nobody else does: behind the fence of the run's lock, by rename, flushed to the disk."""
    fence()
    atomic_io.replace(directory / RECORD, json.dumps(content, indent=2, default=str) + "\n")


def metrics(directory: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a run's metrics.jsonl."""
    file = directory / METRICS
    return [line for line in parsed(file) if line["kind"] == kind] if file.exists() else []


def parsed(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; what a killed process or a power cut left between them is passed over.

    So is a line that lacks a field of its kind, or has something else in it: another version or a person wrote it.
    """
    lines: list[dict[str, Any]] = []
    try:
        content = regular.read(file, most_bytes=regular.MOST_LINES_BYTES)
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}", hint=f"ls -lL {file}") from error
    for text in content.decode(errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            line = foreign_json.loads(text)
            if is_metric(line):
                lines.append(line)
    return lines


def is_metric(line: object) -> bool:
    """Whether this is a line as this version writes it, or one of a kind that it does not know."""
    if not isinstance(line, dict):
        return False
    content = cast("dict[str, Any]", line)
    kind, step = content.get("kind"), content.get("step")
    if not isinstance(kind, str) or type(step) is not int or not 0 <= step <= MOST_STEPS:
        return False
    measured = [value for name, value in content.items() if name.startswith("loss_") or name in MEASURED]
    return all(map(is_number, measured)) and (kind not in HAVE_LOSS or is_number(content.get("loss")))


def is_number(value: object) -> bool:
    """Whether this is a number, also one that is not finite; what no chart can show is none."""
    if type(value) is float:
        return not MOST < abs(value) < math.inf
    return type(value) is int and abs(value) <= MOST_STEPS


def attempt(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a later attempt keeps of the record of an earlier one; a killed one has no end."""
    began = record.get("continued") or record.get("started")
    ended = {key: record.get(key) for key in ("ended", "exit_code", "error", "resumed_from", "allowed_changes")}
    return {"started": began, "status": record.get("status"), **ended, "made_with": made_with(record)}


def made_with(record: Mapping[str, Any]) -> dict[str, str]:
    """What of an attempt another may have otherwise without being asked, and what changes a bit, as name and text."""
    facts, plan = record.get("facts") or {}, record.get("plan") or {}
    decided = {decision["name"]: decision["value"] for decision in plan.get("decisions", [])}
    on_cpu = {"instruction set": facts.get("instruction_set"), "CPUs": facts.get("cpus")}
    facts_by_name = {
        "loradock's code": record.get("code_sha256"),
        "GPUs": ", ".join(gpu["name"] for gpu in facts.get("gpus") or []) or None,
        "micro-batch": decided.get("micro_batch"),
        **(on_cpu if decided.get("device") == "cpu" else {}),
        **(record.get("environment") or {}),
    }
    return {name: str(value) for name, value in facts_by_name.items() if value is not None}


def sha256(file: Path, *, unless: threading.Event) -> str | None:
    """The sha256 of a file, read in blocks; None where `unless` is set before the end."""
    digest = hashlib.sha256()
    with regular.opened(file) as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            if unless.is_set():
                return None
    return digest.hexdigest()


@cache
def code_sha256() -> str:
    """Of loradock's own modules, their names and contents: it is the same in a checkout, a wheel and an image."""
    package, digest = Path(loradock.__file__).parent, hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + hashlib.sha256(regular.read(file)).digest())
    return digest.hexdigest()


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
