"""What a report says of the machine: its parts, its packages, and what the environment check found."""

from __future__ import annotations

from dataclasses import dataclass

from loradock.analysis.report.html.runs import Run, at, listed, number
from loradock.text.amounts import size_text

Rows = list[tuple[str, str]]
IMPORTANT = ("error", "warning")


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that a person should know: how bad, where or when, what, and what to do."""

    severity: str
    place: str
    what: str
    remedy: str


def add(rows: Rows, label: str, value: str) -> None:
    """A row, where there is something to say."""
    if value:
        rows.append((label, value))


def environment(run: Run) -> Rows:
    """The machine."""
    facts = run.section("facts")
    rows: Rows = []
    for gpu in listed(facts.get("gpus")):
        size = number(gpu.get("memory_bytes"))
        add(rows, "GPU", f"{gpu.get('name', 'unknown')}" + (f", {size_text(int(size))}" if size else ""))
    if facts and not facts.get("gpus"):
        rows.append(("GPU", "none"))
    add(rows, "Driver", str(facts.get("driver") or ""))
    add(rows, "Platform", str(facts.get("platform") or ""))
    add(rows, "Python", str(facts.get("python") or ""))
    add(rows, "CPUs", str(facts.get("cpus") or ""))
    add(rows, "Memory", size_text(int(size)) if (size := number(facts.get("memory_bytes"))) else "")
    add(rows, "Processes", str(facts.get("world_size") or ""))
    add(rows, "Container", "yes" if facts.get("in_container") else "no" if facts else "")
    add(rows, "Code", str(facts.get("git_commit") or ""))
    add(rows, "Lock", f"sha256 {facts['lock_sha256']}" if facts.get("lock_sha256") else "")
    add(rows, "Dtypes", ", ".join(f"{part} {dtype}" for part, dtype in run.section("dtypes").items()))
    return rows


def packages(run: Run) -> Rows:
    """Versions."""
    versions = {"loradock": run.at("loradock", default="unknown"), **run.section("facts", "packages")}
    return [(str(name), str(version)) for name, version in versions.items()]


def findings(run: Run) -> tuple[str, list[Note]]:
    """What the environment check came to, and what it found that is not well."""
    proof = run.section("env_check")
    entries = listed(at(proof, "findings"))
    notes = [
        Note(
            severity=str(entry["severity"]),
            place=str(entry.get("check", "")),
            what=str(entry.get("what", "")),
            remedy=str(entry.get("remedy") or ""),
        )
        for entry in entries
        if entry.get("severity") in IMPORTANT
    ]
    if at(proof, "skipped"):
        return f"left out: {proof['skipped']}", []
    if not entries:
        return "not recorded", []
    return f"{len(entries)} findings at the {proof.get('level', 'unknown')} level, {len(notes)} of them not well", notes
