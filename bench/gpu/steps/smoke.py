"""Does it run at all: the demo, what env-check finds, and each backend on a tiny Llama."""

from __future__ import annotations

import json
from typing import Any

from bench.gpu.steps.base import Session, Step
from bench.gpu.steps.trainings import train

BACKENDS = ("fast", "peft")
FEW = 8


def nvml(session: Session) -> dict[str, Any]:
    """What NVML and the kernel say of the GPU."""
    return examined(session, "--only", "gpu")


def env_check(session: Session) -> dict[str, Any]:
    """Everything that proves that the machine can train."""
    return examined(session, "--level", "compute")


def examined(session: Session, *options: str) -> dict[str, Any]:
    """The findings of env-check, whatever it ends with: an error of the host's own packages is an answer, too."""
    text = session.python("-m", "loradock", "env-check", "--json", *options, ends_with=tuple(range(128)))
    told = json.loads(text)
    findings = [{name: each[name] for name in ("check", "severity", "what")} for each in told["findings"]]
    bad = sorted({each["check"] for each in findings if each["severity"] != "ok"})
    seconds = {name: told[name] for name in ("seconds", "facts") if name in told}
    return {
        "summary": f"ends with {told['exit_code']}; not ok: {', '.join(bad) or 'nothing'}",
        **seconds,
        "findings": findings,
    }


def demo(session: Session) -> dict[str, Any]:
    """The first command of the README, with packing."""
    short = ("--max-steps", "6") if session.is_tiny else ()
    run = train(session, "demo", "--demo", *short, train__packing="true", logging__every=1)
    accuracy = [line.strip() for line in run.said.splitlines() if "accuracy before" in line]
    figures = run.figures()
    losses = figures["losses"]
    return {"summary": f"loss {losses[0]:.3f} -> {losses[-1]:.3f}", "accuracy": accuracy, **figures}


def backends(session: Session) -> dict[str, Any]:
    """The same steps of a tiny Llama on each backend: they begin at the same loss."""
    model = session.model("tiny")
    rows = session.rows(model, count=4 * FEW)
    for engine in BACKENDS:
        run = train(
            session, engine, "--model", model, "--data", rows, "--batch-size", "4", "--max-steps", "4", engine=engine
        )
        session.say(**{engine: run.figures(warmup_steps=1)})
    first = [session.answer[engine]["losses"][0] for engine in BACKENDS]
    return {
        "summary": ", ".join(f"{engine} {loss:.5f}" for engine, loss in zip(BACKENDS, first, strict=True))
        + " at step 1"
    }


STEPS = (
    Step(name="nvml", about="env-check --only gpu", questions=(13,), work=nvml, seconds=60),
    Step(name="env-check", about="env-check --level compute", questions=(12,), work=env_check, seconds=180),
    Step(name="demo", about="train --demo --set train.packing=true", questions=(7,), work=demo, seconds=240),
    Step(name="backends", about="a tiny Llama on each engine", questions=(7,), work=backends, seconds=180),
)
