"""The tests of tests/gpu, a step each: what the fast engine computes on a GPU against bitsandbytes, SDPA and PEFT."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from bench.gpu.steps.base import CannotRun, Failed, Session, Step

FAST = "tests/gpu/test_fast_engine.py"
SHARDED = "tests/gpu/test_sharded.py"
TESTS_FAILED = 1


def selected(file: str, chosen: str, *, tiny: str = "", gpus: int = 1) -> Callable[[Session], dict[str, Any]]:
    """Work that runs the tests of a file that `chosen` selects; fewer of them in a rehearsal."""

    def work(session: Session) -> dict[str, Any]:
        session.need_gpus(gpus)
        if not importlib.util.find_spec("pytest"):
            raise CannotRun("pytest is not installed")
        report = session.folder() / "junit.xml"
        report.unlink(missing_ok=True)
        expression = f"({chosen}) and {tiny}" if session.is_tiny and tiny else chosen
        # The project's own options ask for plugins that a host may lack, and make a newer package's warnings errors.
        own = ("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-p", "no:cacheprovider")
        session.python(
            "-m", "pytest", file, "-k", expression, *own, f"--junitxml={report}", ends_with=(0, TESTS_FAILED)
        )
        cases = [case_of(each) for each in ET.parse(report).iter("testcase")]
        session.say(tests=cases)
        failed = [case for case in cases if case["outcome"] == "failed"]
        if failed or not cases:
            raise Failed("; ".join(f"{case['name']}: {case['why']}" for case in failed) or "no test was selected")
        return {"summary": ", ".join(f"{count} {outcome}" for outcome, count in counted(cases).items())}

    return work


def case_of(each: ET.Element) -> dict[str, Any]:
    """A test: its name, what became of it, and why."""
    bad = next((part for kind in ("failure", "error", "skipped") for part in each.findall(kind)), None)
    outcome = "passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"
    told = {part.get("name", ""): part.get("value") for part in each.iter("property")}
    why = "" if bad is None else (bad.get("message") or "")[:400]
    return {"name": each.get("name"), "outcome": outcome, "why": why, "seconds": float(each.get("time", 0)), **told}


def counted(cases: list[dict[str, Any]]) -> dict[str, int]:
    """How many of each outcome."""
    outcomes = [case["outcome"] for case in cases]
    return {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}


STEPS = (
    Step(
        name="equals-peft",
        about="tests/gpu -k either_kernels",
        questions=(5, 23),
        work=selected(FAST, "either_kernels"),
        seconds=180,
    ),
    Step(
        name="equals-bitsandbytes",
        about="tests/gpu -k cached",
        questions=(3,),
        work=selected(FAST, "cached", tiny="shape5-2048"),
        seconds=240,
    ),
    Step(
        name="attention",
        about="tests/gpu -k documents",
        questions=(4,),
        work=selected(FAST, "documents", tiny="True-64"),
        seconds=180,
    ),
    Step(name="graphs", about="tests/gpu -k captured", questions=(21,), work=selected(FAST, "captured"), seconds=180),
    Step(name="graphs-fail", about="tests/gpu -k fails", questions=(36,), work=selected(FAST, "fails"), seconds=180),
)

SEVERAL = (
    Step(
        name="fsdp",
        about="tests/gpu/test_sharded.py",
        questions=(29,),
        work=selected(SHARDED, "not zero", gpus=2),
        seconds=500,
    ),
    Step(
        name="zero",
        about="tests/gpu/test_sharded.py",
        questions=(30,),
        work=selected(SHARDED, "zero", gpus=2),
        seconds=500,
    ),
)
