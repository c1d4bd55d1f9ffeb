"""What goes wrong on purpose: a GPU that is too full, a run that is stopped and continued."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT
from bench.gpu.steps.base import Failed, Session, Step
from bench.gpu.steps.trainings import Run, command, resume, train

POLL_SECONDS = 0.2
STOPPED = (75, 76)
LEFT_BYTES = 12 * 2**30
"""That the other process leaves of the GPU."""
TIGHT = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.0015"}
"""A rehearsal's GPU, which a tiny model could not fill: the allocator itself refuses what goes beyond this share."""


def too_much(session: Session) -> dict[str, Any]:
    """A micro-batch that no GPU holds: halved until it fits, and then the loss is that of the smaller one."""
    return refused_at_first(session, micro_batch=64 if session.is_tiny else 256)


def beside(session: Session) -> dict[str, Any]:
    """A run that would fit, beside a process that takes most of the memory."""
    with held(LEFT_BYTES):
        return refused_at_first(session, micro_batch=64)


def refused_at_first(session: Session, *, micro_batch: int) -> dict[str, Any]:
    """Train with too much, and again with what the first run came down to from the start."""
    settings: dict[str, Any] = {"train__micro_batch": micro_batch, "train__checkpointing": "false"}
    model = session.model(session.small)
    rows = session.rows(model, name="fixed-512" if session.is_tiny else "fixed-2048", count=512)
    tight = TIGHT if session.is_tiny else {}
    shared = ("--model", model, "--data", rows, "--max-steps", "2", "--batch-size", str(micro_batch))
    with environment(tight):
        run = train(session, "full", *shared, train__packing="false", engine="fast", **settings)
    shrunk = run.record.get("shrunk", [])
    session.say(full=run.figures(warmup_steps=0))
    if not shrunk:
        return {"summary": "it fitted: nothing had to be recovered from"}
    chosen = settings | {
        f"train__{each['decision']}": each["value"] for each in shrunk if each["decision"] == "micro_batch"
    }
    with environment(tight):
        small = train(session, "small", *shared, train__packing="false", engine="fast", **chosen)
    pairs = list(zip(run.losses, small.losses, strict=True))
    farthest = max(abs(one - other) / other for one, other in pairs)
    came = ", ".join(
        f"{each['decision']} {each['before']} -> {each['value']} at step {each['step']}" for each in shrunk
    )
    return {"summary": f"{came}; loss within {farthest:.1e} of the smaller one's", "losses": pairs}


@contextlib.contextmanager
def held(left_bytes: int) -> Iterator[None]:
    """While another process has all of the GPU's memory but `left_bytes`."""
    holding = [sys.executable, "-m", "bench.gpu.hold", str(left_bytes)]
    with subprocess.Popen(holding, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            if not process.stdout.readline():
                raise Failed("the process that was to take the memory ended")
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """With these variables for what is started."""
    import os

    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def continued(**settings: Any) -> Callable[[Session], dict[str, Any]]:
    """Work that trains twice, the second time stopped by SIGTERM and continued, and compares the adapters."""

    def work(session: Session) -> dict[str, Any]:
        model = session.model(session.small)
        batch, steps = (2, 24) if session.is_tiny else (16, 60)
        rows = session.rows(model, count=batch * steps)
        shape = ("--model", model, "--data", rows, "--batch-size", str(batch), "--max-steps", str(steps))
        whole = train(session, "whole", *shape, checkpoints__every=steps, **settings)
        session.say(whole=whole.figures())
        at = stopped(session, *shape, checkpoints__every=steps, **settings)
        if at is None:
            raise Failed("the run ended before SIGTERM reached it")
        again = resume(session, "cut", *shape, checkpoints__every=steps, **settings)
        is_same = adapter_digest(whole) == adapter_digest(again)
        farthest = max(abs(one - other) for one, other in zip(whole.losses, again.losses, strict=True))
        told = "the same bits" if is_same else f"other bits; losses within {farthest:.1e}"
        return {
            "summary": f"stopped at step {at}: {told}",
            "is_same": is_same,
            "farthest_loss": farthest,
            "stopped_at": at,
        }

    return work


def stopped(session: Session, *arguments: str | Path, **settings: Any) -> int | None:
    """Start a run in `cut`, end it by SIGTERM after some steps; the step that it committed, else None."""
    directory = session.folder() / "cut"
    shutil.rmtree(directory, ignore_errors=True)
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    chosen |= {"logging.every": 1, "data.cache": session.folder("cache")}
    metrics = directory / "metrics.jsonl"
    with session.log.open("ab") as log:
        process = subprocess.Popen(
            command("--output", directory, *arguments, settings=chosen), cwd=ROOT, stdout=log, stderr=log
        )
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b'"train"') >= 3):
            time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    if code == 0:
        return None
    if code not in STOPPED:
        raise Failed(f"the run that got SIGTERM ended with exit code {code}")
    return Run(directory=directory, said="").metrics()[-1]["step"]


def adapter_digest(run: Run) -> str:
    """sha256 of the adapter's file."""
    return hashlib.sha256((run.directory / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


STEPS = (
    Step(
        name="out-of-memory",
        about="train --set train.micro_batch=256 on rows of 2048 tokens",
        questions=(16,),
        work=too_much,
        seconds=300,
    ),
    Step(
        name="resume",
        about="SIGTERM, then the same command, with deterministic=true",
        questions=(9,),
        work=continued(deterministic="true"),
        seconds=300,
    ),
    Step(
        name="resume-free",
        about="the same without deterministic",
        questions=(9,),
        work=continued(deterministic="false"),
        seconds=300,
    ),
    Step(
        name="resume-paged",
        about="the same with train.optimizer=paged_adamw_8bit",
        questions=(18,),
        work=continued(deterministic="true", train__optimizer="paged_adamw_8bit"),
        seconds=300,
    ),
    Step(
        name="out-of-memory-beside",
        about="train beside a process that leaves 12 GiB of the GPU",
        questions=(16,),
        work=beside,
        seconds=300,
    ),
)
