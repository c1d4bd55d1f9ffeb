"""What a finished run has on record: the content of run.json and its metric lines, made by the real record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from facts.recorded import config, data, machine, planned

from loradock.plan.plan import Plan
from loradock.training.run_dir.record import RunRecord

REVISION = "c" * 40


def plan() -> Plan:
    return planned(facts=machine("h200", flash=True), data=data(held_out=100))


def content(directory: Path, *, revision: str | None = REVISION, **known: Any) -> dict[str, Any]:
    """The content of a run of Mistral-7B on an H200 that ended after 40 steps; `known` are facts that differ."""
    asked = config(
        model={"name": "mistralai/Mistral-7B-v0.3", "revision": revision},
        data={"loss": "assistant"},
        lora={"rank": 8, "targets": ["q_proj", "v_proj"]},
    )
    facts = machine("h200", git_commit="c0ffee", **known)
    record = RunRecord(directory, config=asked, origins={}, facts=facts)
    record.timing("training", 20.0)
    record.put(
        name="mistral-rows-001",
        base={"name": "mistralai/Mistral-7B-v0.3", "revision": revision, "path": "/models/mistral"},
        data={"sources": [{"path": "rows.jsonl", "sha256": "ab" * 32}]},
        plan=plan().as_dict(),
        outcome={"steps": 40, "ended": "last step", "seconds": 20.0, "best_step": 30},
    )
    record.end("finished", exit_code=0)
    return record.content


def metrics(steps: int = 40) -> list[dict[str, Any]]:
    return [
        {"step": step, "loss": 3.0 - step / 20, "learning_rate": 2e-4, "tokens": 1000, "seconds": 0.5}
        for step in range(1, steps + 1)
    ]


def evaluations() -> list[dict[str, Any]]:
    return [
        {"step": 20, "loss": 1.5, "perplexity": 4.4817},
        {"step": 40, "loss": 1.25, "perplexity": 3.4903},
    ]
