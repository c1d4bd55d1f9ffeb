"""What `env-check` shows a person: a line for each finding with its remedy below, and the verdict."""

from __future__ import annotations

from loradock.env_check import CHECKS
from loradock.env_check.base import Check, Finding
from loradock.env_check.examination import NEEDS, Examination
from loradock.text.amounts import counted

MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}
WIDTH = 2 + max(len(check.name) for check in CHECKS)
INDENT = 8 + WIDTH


def finding_lines(check: Check, finding: Finding) -> list[str]:
    """The finding, and its remedy where it has one."""
    lines = [f"{MARKS[finding.severity]:8}{check.name:{WIDTH}}{finding.what}"]
    if finding.remedy:
        lines.append(f"{'':{INDENT}}-> {finding.remedy}")
    return lines


def verdict(examination: Examination) -> str:
    """How it ended, in a sentence, and what was left out."""
    severities = [finding.severity for _, finding in examination.findings]
    counts = ", ".join(counted(severities.count(kind), kind) for kind in ("error", "warning"))
    looked = {result.check for result in examination.looked}
    is_complete = all(check in looked for check in CHECKS if check.needs == "nothing" and check.level != "bench")
    if examination.worst == "error":
        ending = examination.ending
    elif is_complete:
        ending = "this machine can train"
    else:
        ending = "these checks passed; run all checks to be sure"
    omitted_kinds = [
        name for name in NEEDS.values() if name and any(NEEDS[c.needs] == name for c in examination.left_out)
    ]
    omission = "".join(
        f"; {counted(sum(NEEDS[c.needs] == name for c in examination.left_out), 'check')} skipped without {name}"
        for name in omitted_kinds
    )
    return f"{counted(len(looked), 'check')}, {counts}, {examination.seconds:.1f} s: {ending}{omission}"
