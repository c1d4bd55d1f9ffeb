"""Tokens a second, ours and the peers' interleaved, by bench.train: what was measured stays, and a cut step goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.steps.base import Left, Session, Step
from bench.train.__main__ import DEFAULTS, LEFT
from bench.train.lines import FAILED, read
from bench.train.measures import measured

NAME = "speed"
END_SECONDS = 75
"""For the slice that runs when the time is up: bench.train gives it a minute."""
MAIN = ("ours", "trl-best", "unsloth-best", "ours-graphs")
MORE = (
    "trl-vanilla",
    "unsloth",
    "ours-trl",
    "ours-without-cache",
    "ours-without-kernels",
    "ours-without-packing",
    "trl-packing",
    "trl-liger",
)
TINY = ("--steps", "3", "--warmup-steps", "1", "--samples", "4", "--repeats", "1", "--budget-tokens", "512")
TINY_ROWS = "commonsense"
OFTEN = 12


def compared(
    size: str, arms: tuple[str, ...], *, repeats: int, rows: str, budget_tokens: int
) -> Callable[[Session], dict[str, Any]]:
    """Work that measures these arms on a model: `small` or `large`."""

    def work(session: Session) -> dict[str, Any]:
        model, chosen_rows = getattr(session, size), TINY_ROWS if session.is_tiny else rows
        left_out = {arm: why for arm in arms if (why := obstacle(session, arm))}
        chosen = [arm for arm in arms if arm not in left_out]
        results = session.kept(f"{NAME}.jsonl")
        shape = TINY if session.is_tiny else ("--repeats", str(repeats), "--budget-tokens", str(budget_tokens))
        total = max(60, session.seconds_left - END_SECONDS)
        seconds = ("--slice-seconds", str(min(150, int(total / 2))), "--total-seconds", str(int(total)))
        unsloth = ("--unsloth-python", sys.executable, "--unsloth-packages", session.unsloth_packages)
        places = ("--work", Path(session.work), "--results", results, "--name", NAME)
        session.python(
            *(
                "-m",
                "bench.train",
                "--device",
                "cuda",
                "--skip-env-check",
                "--floor-seconds",
                "0",
                "--models",
                model,
                "--rows",
                chosen_rows,
            ),
            *("--arms", *chosen, *shape, *seconds, *places, *(unsloth if session.unsloth_packages else ())),
            ends_with=(0, LEFT),
        )
        lines = [line for line in read(results / f"{NAME}.jsonl") if line["kind"] == "slice"]
        warmup = 1 if session.is_tiny else DEFAULTS["cuda"]["warmup_steps"]
        found = {arm: speeds(lines, model=model, rows=chosen_rows, arm=arm, warmup=warmup) for arm in chosen}
        session.say(arms=found, left_out=left_out)
        session.say(summary=", ".join(f"{arm} {told(each)}" for arm, each in found.items()))
        if session.answer["exit_code"] == LEFT:
            raise Left("slices are left")
        return {}

    return work


def obstacle(session: Session, arm: str) -> str:
    """Why an arm is left out; empty where it is not."""
    if arm.startswith("unsloth") and not session.unsloth_packages:
        return "unsloth is not installed (--unsloth-wheels DIR)"
    if arm == "trl-liger" and session.is_tiny:
        return "a rehearsal's stand-in computes no kernels of Liger"
    return ""


def speeds(lines: list[dict[str, Any]], *, model: str, rows: str, arm: str, warmup: int) -> dict[str, Any]:
    """Tokens a second of each repeat, peak memory, and why a slice failed."""
    ours = [line for line in lines if (line["model"], line["rows"], line["arm"]) == (model, rows, arm)]
    good = [line for line in ours if line["status"] != FAILED and line["steps"]["step"]]
    peaks = [line["summary"].get("peak_reserved_bytes") for line in good]
    return {
        "tokens_per_second": [each.tokens_per_second for line in good if (each := measured(line, warmup_steps=warmup))],
        "peak_reserved_bytes": max((peak for peak in peaks if peak), default=None),
        "first_loss": good[0]["steps"]["loss"][0] if good else None,
        "failed": [line["reason"] for line in ours if line["status"] == FAILED],
    }


def told(found: dict[str, Any]) -> str:
    """An arm in some words."""
    rates = sorted(found["tokens_per_second"])
    if not rates:
        return "failed" if found["failed"] else "not yet"
    return f"{rates[len(rates) // 2]:,.0f} tokens/s"


STEPS = (
    Step(
        name="speed-1b",
        about="bench.train --models tinyllama-1.1b: ours, TRL's best, unsloth's best, CUDA graphs",
        questions=(5, 6, 21),
        work=compared("small", MAIN, repeats=3, rows="commonsense", budget_tokens=32768),
        seconds=520,
        tiny_seconds=520,
        least_seconds=300,
        runs=OFTEN,
    ),
    Step(
        name="speed-7b",
        about="bench.train --models mistral-7b: the same arms",
        questions=(5, 6, 21),
        work=compared("large", MAIN, repeats=2, rows="commonsense", budget_tokens=8192),
        seconds=520,
        tiny_seconds=520,
        least_seconds=400,
        runs=OFTEN,
    ),
)

MORE_STEPS = (
    Step(
        name="arms-1b",
        about="bench.train --models tinyllama-1.1b: each optimisation switched off, TRL's and unsloth's defaults",
        questions=(2, 5, 6, 23),
        work=compared("small", MORE, repeats=1, rows="commonsense", budget_tokens=32768),
        seconds=520,
        tiny_seconds=520,
        least_seconds=300,
        runs=OFTEN,
    ),
    Step(
        name="fixed-7b",
        about="bench.train --models mistral-7b --rows fixed-1024: nothing to gain from packing",
        questions=(5, 6),
        work=compared("large", MAIN[:3], repeats=1, rows="fixed-1024", budget_tokens=8192),
        seconds=520,
        tiny_seconds=520,
        least_seconds=400,
        runs=OFTEN,
    ),
)
