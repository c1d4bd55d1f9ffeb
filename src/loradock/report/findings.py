"""What `env-check` shows a person: a line for each finding with its remedy below, and the verdict."""

from __future__ import annotations

from loradock.checks import CHECKS
from loradock.checks.base import Check, Finding
from loradock.checks.examination import Examination

MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}
WIDTH = 2 + max(len(check.name) for check in CHECKS)


def finding_lines(check: Check, finding: Finding) -> list[str]:
    """The finding, and its remedy where it has one."""
    lines = [f"{MARKS[finding.severity]:8}{check.name:{WIDTH}}{finding.what}"]
    if finding.remedy:
        lines.append(f"{'':8}{'':{WIDTH}}-> {finding.remedy}")
    return lines


def verdict(examination: Examination) -> str:
    """How it ended, in a sentence."""
    severities = [finding.severity for _, finding in examination.findings]
    counts = f"{severities.count('error')} errors, {severities.count('warning')} warnings"
    ending = "this machine cannot train as it is" if examination.worst == "error" else "this machine can train"
    if examination.level == "quick" and examination.worst != "error":
        ending = "nothing stands in the way; --level compute proves it"
    return f"{len(examination.looked)} checks, {counts}, {examination.seconds:.1f} s: {ending}"
