"""What `env-check` shows a person: a line for each finding with its remedy below, and the verdict."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

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


def provenance(examination: Examination) -> str:
    """How much of it was proven before, where that is kept, and why the rest was computed, in a line."""
    known = examination.provenance
    if known is None:
        return ""
    reasons = Counter(known.computed.values())
    reasons_text = ", ".join(f"{count} because of {why}" for why, count in reasons.most_common())
    computed = f"{counted(len(known.computed), 'check')} computed now ({reasons_text})"
    if not known.taken:
        return f"environment: {computed}"
    times = sorted(
        datetime.fromtimestamp(at_ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M") for at_ns in known.taken.values()
    )
    when = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    return f"environment: {counted(len(known.taken), 'check')} proven {when} UTC ({known.file}), {computed}"
