"""The tests of tests/gpu, a step each: what the fast engine computes on a GPU against bitsandbytes, SDPA and PEFT."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

from bench.gpu.steps.base import CannotRun, Failed, Session, Step

FAST = "tests/gpu/test_fast_engine.py"
SHARDED = "tests/gpu/test_sharded.py"
TESTS_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Work that runs the tests of a file that `chosen` selects; in a rehearsal those of them that `tiny` does, too."""

    file: str
    chosen: str
    tiny: str = ""
    gpus: int = 1

    def expression(self, *, is_tiny: bool) -> str:
        """What pytest's -k takes."""
        return f"({self.chosen}) and {self.tiny}" if is_tiny and self.tiny else self.chosen

    def __call__(self, session: Session) -> dict[str, Any]:
        """How many tests came to what. Failed where one failed, or there is none."""
        session.need_gpus(self.gpus)
        if not importlib.util.find_spec("pytest"):
            raise CannotRun("pytest is not installed")
        report = session.folder() / "junit.xml"
        report.unlink(missing_ok=True)
        expression = self.expression(is_tiny=session.is_tiny)
        # The project's own options ask for plugins that a host may lack, and make a newer package's warnings errors.
        own = ("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default", "-p", "no:cacheprovider")
        session.python(
            "-m", "pytest", self.file, "-k", expression, *own, f"--junitxml={report}", ends_with=(0, TESTS_FAILED)
        )
        cases = [case_of(each) for each in ET.parse(report).iter("testcase")]
        session.say(tests=cases)
        failed = [case for case in cases if case["outcome"] == "failed"]
        if failed or not cases:
            raise Failed("; ".join(f"{case['name']}: {case['why']}" for case in failed) or "no test was selected")
        return {"summary": ", ".join(f"{count} {outcome}" for outcome, count in counted(cases).items())}


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
        work=Selected(file=FAST, chosen="either_kernels"),
        seconds=180,
    ),
    Step(
        name="equals-bitsandbytes",
        about="tests/gpu -k cached",
        questions=(3,),
        work=Selected(file=FAST, chosen="cached", tiny="2048"),
        seconds=240,
    ),
    Step(
        name="attention",
        about="tests/gpu -k documents",
        questions=(4,),
        work=Selected(file=FAST, chosen="documents", tiny="True-64"),
        seconds=180,
    ),
    Step(
        name="graphs",
        about="tests/gpu -k captured",
        questions=(21,),
        work=Selected(file=FAST, chosen="captured"),
        seconds=180,
    ),
    Step(
        name="graphs-fail",
        about="tests/gpu -k fails",
        questions=(36,),
        work=Selected(file=FAST, chosen="fails"),
        seconds=180,
    ),
)

SEVERAL = (
    Step(
        name="fsdp",
        about="tests/gpu/test_sharded.py",
        questions=(29,),
        work=Selected(file=SHARDED, chosen="not zero", gpus=2),
        seconds=500,
    ),
    Step(
        name="zero",
        about="tests/gpu/test_sharded.py",
        questions=(30,),
        work=Selected(file=SHARDED, chosen="zero", gpus=2),
        seconds=500,
    ),
)
