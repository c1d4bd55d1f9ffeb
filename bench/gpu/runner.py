"""Runs the steps that are left, each in a process of its own that is killed at its limit, and keeps what they said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT
from bench.gpu.results import CUT, ENDED, FAILED, LEFT, RUNNING, Results
from bench.gpu.steps.base import Session, Step

MARK = "LORADOCK_GPU_RUN"
"""In the environment of every process of a step: what is left over is found by it, whatever session it made."""
END_SECONDS = 10.0
"""At the end of a call, for the last results."""
LOG_BYTES = 8 << 20
SWEEP_SECONDS, PASS_SECONDS = 10.0, 0.05


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The steps of one call: `deadline` (time.monotonic) is when it has to be over."""

    steps: tuple[Step, ...]
    results: Results
    out: Path
    work: Path
    is_tiny: bool
    deadline: float
    unsloth_packages: str

    def left(self) -> list[Step]:
        """Steps without an answer that may still be run."""
        return [step for step in self.steps if not self.is_over(step)]

    def is_over(self, step: Step) -> bool:
        """Whether it has its answer, or was cut too often."""
        entry = self.results.entry(step.name)
        return entry.get("outcome") in ENDED or entry.get("runs", 0) >= step.runs

    def run(self) -> None:
        """Run what is left and fits into the time, in order; one that does not fit lets a shorter one go first."""
        while True:
            fitting = [step for step in self.left() if step.least(is_tiny=self.is_tiny) <= self.seconds_left]
            if not fitting:
                return
            self.one(fitting[0])

    @property
    def seconds_left(self) -> float:
        """For steps."""
        return self.deadline - time.monotonic() - END_SECONDS

    def one(self, step: Step) -> None:
        """Run one step and keep what came of it."""
        entry = self.results.entry(step.name)
        seconds = min(step.limit(is_tiny=self.is_tiny), self.seconds_left)
        runs = entry.get("runs", 0) + 1
        print(f"{step.name} (up to {seconds:.0f} s): {step.about} ...", file=sys.stderr, flush=True)
        self.results.put(step.name, outcome=RUNNING, reason="", runs=runs)
        shorten(self.out / "log.txt")
        began = time.monotonic()
        found = self.child(step, seconds=seconds)
        found = {"seconds": round(time.monotonic() - began, 1), "reason": "", **found}
        if found["outcome"] in (CUT, LEFT) and runs >= step.runs:
            found["reason"] += f"; given up after {runs} runs"
        self.results.put(step.name, **found)
        told = found["reason"] or found["answer"].get("summary", "")
        print(f"  {found['outcome']}, {found['seconds']:.0f} s: {told}", file=sys.stderr, flush=True)

    def child(self, step: Step, *, seconds: float) -> dict[str, Any]:
        """The step's process, to its end or its limit; what it left."""
        session = Session(
            name=step.name,
            out=str(self.out),
            work=str(self.work),
            is_tiny=self.is_tiny,
            ends=time.time() + seconds,
            identity=self.results.identity,
            gpus=self.results.content["stacks"][self.results.identity]["gpus"],
            unsloth_packages=self.unsloth_packages,
        )
        session.answer_file.unlink(missing_ok=True)
        with session.log.open("ab") as log:
            log.write(f"\n=== {step.name}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.child", session.task()],
                cwd=ROOT,
                env={**os.environ, MARK: str(self.out)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                sweep(self.out)
                process.wait()
        said = json.loads(session.answer_file.read_text(encoding="utf-8")) if session.answer_file.exists() else {}
        if code is None:
            return {"answer": {}, **said, "outcome": CUT, "reason": f"killed at its limit of {seconds:.0f} s"}
        if "outcome" not in said:
            return {"answer": {}, **said, "outcome": FAILED, "reason": f"its process ended with {code}"}
        return said


def sweep(out: Path) -> set[int]:
    """Kill every process that a step of a call with this `out` has left, and wait for their end; their numbers.

    Looked at least twice: a process in the middle of its start shows no environment yet.
    """
    killed: set[int] = set()
    ends = time.monotonic() + SWEEP_SECONDS
    is_first = True
    while (found := marked(out)) or is_first:
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        killed |= found
        if time.monotonic() > ends:
            break
        is_first = False
        time.sleep(PASS_SECONDS)
    return killed


def marked(out: Path) -> set[int]:
    """Processes with the mark of `out` in their environment; none that has ended."""
    mark = f"{MARK}={out}".encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def shorten(log: Path) -> None:
    """Keep the second half of a log that grew too long to be carried."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.write_bytes(log.read_bytes()[-LOG_BYTES // 2 :])
