"""results.json, whole at every moment, and results.md: the table of docs/gpu.md with its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu.questions import QUESTIONS, Question
from bench.gpu.steps import STEPS
from loradock.files import atomic_io

FORMAT = 1
RUNNING, DONE, FAILED, OUT_OF_MEMORY, CUT, LEFT, CANNOT = (
    "running",
    "done",
    "failed",
    "out of memory",
    "cut",
    "left",
    "cannot run",
)
ENDED = (DONE, FAILED, OUT_OF_MEMORY, CANNOT)
"""Outcomes that are an answer; the others are run again, as often as the step allows."""
HEAD = ("| # | question | decides | by | answer |", "| --- | --- | --- | --- | --- |")
KILLED = "scripts/gpu was killed while it ran"


@dataclass(kw_only=True)
class Results:
    """What is known of each step, with the stack that it was found on; `write` puts both files in place."""

    folder: Path
    identity: str
    content: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def load(cls, folder: Path, *, identity: str, stack: dict[str, Any], notes: list[str]) -> Results:
        """What earlier calls left in the folder. A step that was running when they were killed was cut."""
        file = folder / "results.json"
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"stacks": {}, "steps": {}}
        content = {"format": FORMAT, **content}
        content["stacks"][identity] = {**stack, "notes": notes}
        for entry in content["steps"].values():
            if entry["outcome"] == RUNNING:
                entry |= {"outcome": CUT, "reason": KILLED}
        return cls(folder=folder, identity=identity, content=content)

    def entry(self, name: str) -> dict[str, Any]:
        """What is known of a step on this stack; empty where it was not begun on it."""
        found = self.content["steps"].get(name, {})
        return found if found.get("identity") == self.identity else {}

    def put(self, name: str, **parts: Any) -> None:
        """Keep it and write."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {**self.entry(name), **parts, "identity": self.identity, "at": now}
        self.content["steps"][name] = entry
        self.write()

    def forget(self, name: str) -> None:
        """Run it again."""
        self.content["steps"].pop(name, None)

    def write(self) -> None:
        """Both files; each is whole at every moment."""
        atomic_io.replace(self.folder / "results.json", json.dumps(self.content, indent=1) + "\n")
        atomic_io.replace(self.folder / "results.md", self.markdown())

    def markdown(self) -> str:
        """The table of docs/gpu.md with the answers, the steps in their order, the stacks."""
        lines = ["# What a GPU answered", ""]
        for identity, stack in self.content["stacks"].items():
            gib = f"{stack['memory_bytes'] / 2**30:.1f} GiB" if stack["memory_bytes"] else "no memory"
            packages = ", ".join(f"{name} {version}" for name, version in stack["packages"].items())
            lines.append(
                f"- `{identity}`: {stack['gpu']} ({gib}), driver {stack['driver']}, CUDA {stack['cuda']}, Python "
                f"{stack['python']}, {packages}; commit {stack['commit']}, code {stack['code']}"
            )
            lines += [f"  - {note}" for note in stack["notes"]]
        lines += ["", *table(self.answer), "", "## Steps", "", "| step | outcome | seconds | stack | what |"]
        lines.append("| --- | --- | ---: | --- | --- |")
        for step in STEPS:
            entry = self.content["steps"].get(step.name, {})
            told = cell(entry.get("reason") or entry.get("answer", {}).get("summary", ""))
            seconds = f"{entry['seconds']:.0f}" if "seconds" in entry else ""
            outcome, identity = entry.get("outcome", "not run yet"), entry.get("identity", "")
            lines.append(f"| {step.name} | {outcome} | {seconds} | {identity} | {told} |")
        return "\n".join([*lines, ""])

    def answer(self, question: Question) -> str:
        """The cell of a question: what each of its steps found."""
        found: list[str] = []
        for step in STEPS:
            entry = self.content["steps"].get(step.name)
            if entry and question.number in step.questions:
                parts = ["" if entry["outcome"] == DONE else entry["outcome"], entry.get("reason", "")]
                told = "; ".join(part for part in (*parts, entry.get("answer", {}).get("summary", "")) if part)
                found.append(f"{step.name}: {told}")
        return cell(". ".join(found) or (question.by_hand and "not by the script"))


def table(answer: Callable[[Question], str]) -> list[str]:
    """A row for each question; `answer` gives its last cell."""
    return [*HEAD, *(f"{row(question)} {answer(question)} |" for question in QUESTIONS)]


def row(question: Question) -> str:
    """The row of a question up to its answer."""
    steps = ", ".join(f"`{step.name}`" for step in STEPS if question.number in step.questions)
    by = steps or f"by hand: {question.by_hand}"
    return f"| {question.number} | {question.text} | {question.decides} | {by} |"


def cell(text: str) -> str:
    """Text that a cell of a table holds."""
    return " ".join(text.replace("|", "/").split())[:600]
