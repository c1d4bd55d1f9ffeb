"""The rest: torch.compile, what samples and a value read back cost, and what several GPUs are asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from bench.gpu.steps.base import CannotRun, Failed, Session, Step
from bench.gpu.steps.equality import SEVERAL
from bench.gpu.steps.trainings import FELL_BACK, train

READS, WORK = 200, 400


def compiled(*modes: str) -> Callable[[Session], dict[str, Any]]:
    """Work that trains with each of these modes of train.compile on the TRL engine; one that fails keeps its reason."""

    def work(session: Session) -> dict[str, Any]:
        model = session.model(session.small)
        batch, steps = (2, 3) if session.is_tiny else (16, 12)
        # What reduce-overhead asks for: micro-batches of one shape, one a step.
        rows = session.rows(model, name="fixed-64" if session.is_tiny else "fixed-512", count=batch * steps)
        still = {"train__packing": "false", "train__micro_batch": batch, "checkpoints__every": steps}
        shape = ("--model", model, "--data", rows, "--batch-size", str(batch), "--max-steps", str(steps))
        found: dict[str, Any] = {}
        for mode in modes:
            if session.is_tiny and mode != "off" and not computes_compiled():
                raise CannotRun("this device launches what torch.compile makes and does not compute it: a stand-in")
            try:
                run = train(session, mode, *shape, engine="trl", train__compile=mode, **still)
                found[mode] = run.figures(warmup_steps=steps // 2)
            except Failed as error:
                found[mode] = {"failed": str(error)}
                if session.is_tiny:
                    raise
            session.say(modes=found, summary=", ".join(f"{name} {speed_of(each)}" for name, each in found.items()))
        return {}

    return work


def computes_compiled() -> bool:
    """Whether a compiled sum comes out right: a stand-in for a GPU launches its kernel and has no numbers for it."""
    import torch

    x = torch.ones(64, device="cuda")
    return torch.equal(torch.compile(lambda each: each * 2 + 1)(x), x * 2 + 1)


def speed_of(found: dict[str, Any]) -> str:
    """A mode in some words; the engine goes on eagerly where compiling fails, and says so."""
    if "failed" in found:
        return "failed"
    is_eager = any(line.startswith(FELL_BACK) for line in found["said"])
    return f"{found['tokens_per_second']:,.0f} tokens/s" + (" (compiling failed, eager)" if is_eager else "")


def monitoring(session: Session) -> dict[str, Any]:
    """bench.monitoring: what samples cost a training."""
    short = ("--rounds", "2", "--steps", "8") if session.is_tiny else ("--rounds", "4", "--steps", "200")
    folder = session.folder("results")
    session.python("-m", "bench.monitoring", *short, "--results", folder)
    (file,) = folder.glob("*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    intervals = {name: each["ratio"] for name, each in record["intervals"].items()}
    told = ", ".join(f"every {name} s: {ratio:.4f}" for name, ratio in intervals.items())
    return {
        "summary": f"a sample {record['sample']['wall_ms']:.2f} ms; seconds of a step with / without, {told}",
        **record,
    }


def read_back(session: Session) -> dict[str, Any]:
    """Seconds that a value read back adds to a queue of small launches: what the look costs a step at most."""
    import torch

    x = torch.ones(256, 256, device="cuda")
    taken: dict[bool, float] = {}
    rounds = 10 if session.is_tiny else READS
    for reads in (False, True, False, True):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            for _ in range(WORK):
                x.mul_(1.0)
            if reads:
                x[0, 0].item()
        torch.cuda.synchronize()
        taken[reads] = (time.perf_counter() - began) / rounds
    added = taken[True] - taken[False]
    return {"summary": f"{added * 1e6:.1f} us a read", "seconds": {"without": taken[False], "with": taken[True]}}


def net_check(session: Session) -> dict[str, Any]:
    """The processes of one machine over NCCL."""
    session.need_gpus(2)
    text = session.python("-m", "loradock", "launch", "--nproc", str(session.gpus), "net-check")
    return {"summary": "ends with 0", "said": text[-4000:]}


STEPS = (
    Step(
        name="compile",
        about="train --set engine=trl at TinyLlama's shape, with train.compile=off and default",
        questions=(22,),
        work=compiled("off", "default"),
        seconds=300,
        runs=2,
    ),
    Step(
        name="compile-graphs",
        about="the same with train.compile=reduce-overhead",
        questions=(22,),
        work=compiled("reduce-overhead"),
        seconds=300,
        runs=2,
    ),
    Step(
        name="compile-autotune",
        about="the same with train.compile=max-autotune",
        questions=(22,),
        work=compiled("max-autotune"),
        seconds=480,
        runs=2,
    ),
    Step(name="monitoring", about="bench.monitoring", questions=(28,), work=monitoring, seconds=400),
    Step(
        name="read-back",
        about="launches with and without a value read back",
        questions=(17,),
        work=read_back,
        seconds=90,
    ),
    *SEVERAL,
    Step(name="net-check", about="launch --nproc N net-check", questions=(32,), work=net_check, seconds=180),
)
