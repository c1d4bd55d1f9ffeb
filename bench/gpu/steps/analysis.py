"""What loradock itself says of a run's time: profile, diagnose, and the peers' share of busy time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from bench.gpu.steps.base import Left, Session, Step

TOP = 5


def profiled(size: str, *settings: str) -> Callable[[Session], dict[str, Any]]:
    """Work that profiles a few steps on a model: `small` or `large`."""

    def work(session: Session) -> dict[str, Any]:
        model = session.model(getattr(session, size))
        batch, steps = (4, 8) if session.is_tiny else (32, 12)
        rows = session.rows(model, count=batch * (steps + 3))
        folder = session.folder() / "profile"
        shutil.rmtree(folder, ignore_errors=True)
        sets = [word for setting in settings for word in ("--set", setting)]
        text = session.python(
            *("-m", "loradock", "profile", "--json", "--model", model, "--data", rows, "--output", folder),
            *(
                "--batch-size",
                str(batch),
                "--steps",
                str(steps),
                "--warmup-steps",
                "1" if session.is_tiny else "3",
                *sets,
            ),
        )
        told = json.loads(text)
        roles = {each["name"]: round(each["share"], 4) for each in told["roles"] if each["share"]}
        busy = "unknown" if told["busy_share"] is None else f"{told['busy_share']:.1%}"
        return {
            "summary": f"busy {busy}; {told['verdict']['sentence']}",
            "roles": roles,
            **{name: told[name] for name in ("verdict", "busy_share", "step_seconds", "tokens_per_second", "timeline")},
            "operators": told["operators"][:TOP],
        }

    return work


def seed_table(session: Session) -> dict[str, Any]:
    """What brakes the seed's settings on a 7B model."""
    short = ("--trials", "rank-8") if session.is_tiny else ()
    return diagnosed(session, session.large, "--preset", "seed-003", *short)


def forked(session: Session) -> dict[str, Any]:
    """Trials in processes that are forked one after another on one GPU."""
    return diagnosed(session, session.small, "--trials", "lora-rank-x0.5,engine-peft")


def diagnosed(session: Session, name: str, *arguments: str) -> dict[str, Any]:
    """Diagnose; the same command goes on from what an earlier one measured."""
    model = session.model(name)
    steps = (2, 1) if session.is_tiny else (8, 2)
    rows = session.rows(model, count=64 if session.is_tiny else 2048)
    budget = 45 if session.is_tiny else max(20, int(session.seconds_left - 90))
    text = session.python(
        *("-m", "loradock", "diagnose", "--json", "--model", model, "--data", rows, *arguments),
        *("--steps", str(steps[0]), "--warmup-steps", str(steps[1]), "--budget", f"{budget}s"),
        *("--output", session.folder("diagnosis")),
    )
    told = json.loads(text)
    trials = {each["name"]: each.get("conclusion", "") for each in told["rows"]}
    session.say(summary=told["summary"], trials=trials, diagnosis=told)
    if not told["is_complete"] and not session.is_tiny:
        raise Left("trials are left")
    return {}


STEPS = (
    Step(name="profile-1b", about="profile at TinyLlama's shape", questions=(27,), work=profiled("small"), seconds=240),
    Step(
        name="profile-7b", about="profile at Mistral-7B's shape", questions=(27,), work=profiled("large"), seconds=420
    ),
    Step(
        name="profile-trl-1b",
        about="profile --set engine=peft at TinyLlama's shape",
        questions=(2,),
        work=profiled("small", "engine=peft"),
        seconds=240,
    ),
    Step(
        name="diagnose-7b",
        about="diagnose --preset seed-003 at Mistral-7B's shape",
        questions=(24,),
        work=seed_table,
        seconds=510,
        least_seconds=300,
    ),
    Step(
        name="trials",
        about="diagnose --trials lora-rank-x0.5,engine-peft at TinyLlama's shape",
        questions=(26,),
        work=forked,
        seconds=300,
    ),
)
MORE_STEPS = (
    Step(
        name="profile-trl-7b",
        about="profile --set engine=peft at Mistral-7B's shape",
        questions=(2,),
        work=profiled("large", "engine=peft"),
        seconds=420,
    ),
)
