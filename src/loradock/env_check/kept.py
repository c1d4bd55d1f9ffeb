"""Good verdicts, kept in a folder of this user until something changes that they depend on.

A verdict counts while every subject that its check names has the digest that it had before and after the check ran, for
a week at most. What failed, or may be different at the next look, is not kept: it is computed again, and what was kept
of that check before is forgotten. The file is a matter of time alone: without it, or with one that is damaged or that
others may write, every check is computed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loradock.env_check.base import Check, Finding, Subject
from loradock.env_check.child import Looked, Machine
from loradock.env_check.subjects import SUBJECTS, digests
from loradock.files import atomic_io, foreign_json, regular
from loradock.machine.marks import is_recent

NAME = "env-check.json"
FORMAT = "loradock.env-check.kept/1"
MOST = 16
"""Verdicts of one check: of several models, of the nodes that share a home."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check found, when (nanoseconds of the epoch), and how all that it depends on was then."""

    subjects: dict[str, str]
    at_ns: int
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Verdict:
        """One of a file. Raises KeyError, TypeError or ValueError for what is none."""
        findings = tuple(Finding(**finding) for finding in content["findings"])
        if not findings or not all(may_be_kept(finding) for finding in findings):
            raise ValueError("no good verdict")
        return cls(subjects=dict(content["subjects"]), at_ns=int(content["at_ns"]), findings=findings)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Which checks were taken from `file`, with the time of each (nanoseconds), and why each other was computed."""

    file: str
    taken: dict[str, int] = field(default_factory=dict[str, int])
    computed: dict[str, str] = field(default_factory=dict[str, str])

    def then(self, later: Provenance | None) -> Provenance:
        """With what was looked at later."""
        if later is None:
            return self
        return Provenance(
            file=self.file, taken={**self.taken, **later.taken}, computed={**self.computed, **later.computed}
        )


class Kept:
    """The verdicts in `folder`, for this machine. With `is_full` none is taken, and all good ones are kept."""

    def __init__(self, folder: Path, around: Machine, *, is_full: bool = False) -> None:
        self.file, self.around, self.is_full = folder / NAME, around, is_full
        self.before: dict[str, str] = {}
        self.provenance = Provenance(file=str(self.file))

    def taken(self, checks: Sequence[Check]) -> list[Looked]:
        """What is known of these checks; `provenance` says of each whether, and else why not."""
        self.before = digests(subjects_of(checks), self.around)
        verdicts = {} if self.is_full else self._read()
        looked: list[Looked] = []
        for check in checks:
            verdict, why = self._standing(check, verdicts.get(check.name, []))
            if verdict:
                looked.append(Looked(check=check, findings=verdict.findings, seconds=0.0))
                self.provenance.taken[check.name] = verdict.at_ns
            else:
                self.provenance.computed[check.name] = why
        return looked

    def keep(self, looked: Iterable[Looked]) -> None:
        """Keep what is good of what was computed since `taken`, and forget what was good of the rest."""
        computed = [look for look in looked if look.check.depends_on != ("moment",)]
        if not computed:
            return
        after = digests(subjects_of([look.check for look in computed]), self.around)
        verdicts = self._read()
        for look in computed:
            names = look.check.depends_on
            subjects: dict[str, str] = {
                name: after[name] for name in names if after.get(name) == self.before.get(name, "")
            }
            others = [verdict for verdict in verdicts.get(look.check.name, []) if verdict.subjects != subjects]
            if not all(may_be_kept(finding) for finding in look.findings):
                verdicts[look.check.name] = []
            elif len(subjects) == len(names):
                verdict = Verdict(subjects=subjects, at_ns=time.time_ns(), findings=look.findings)
                verdicts[look.check.name] = [verdict, *others][:MOST]
        self._write(verdicts)

    def _standing(self, check: Check, verdicts: Sequence[Verdict]) -> tuple[Verdict | None, str]:
        """The verdict that still counts, else why none does: what changed since the one that has the most in common."""
        if "moment" in check.depends_on:
            return None, SUBJECTS["moment"][0]
        if self.is_full:
            return None, "--full-env-check"
        changes: list[tuple[list[Subject], Verdict]] = [
            ([name for name in check.depends_on if verdict.subjects.get(name) != self.before.get(name, "")], verdict)
            for verdict in verdicts
        ]
        if not changes:
            return None, "no proof yet"
        names, verdict = min(changes, key=lambda change: len(change[0]))
        if names:
            return None, f"a change of {' and '.join(SUBJECTS[name][0] for name in names)}"
        return (verdict, "") if is_recent(verdict.at_ns) else (None, "a proof older than a week")

    def _read(self) -> dict[str, list[Verdict]]:
        """{check: verdicts, the latest first}; none where the file is not there, not ours alone, or damaged."""
        try:
            content = foreign_json.loads(regular.read_private(self.file))
            if content["format"] != FORMAT:
                return {}
            return {name: [Verdict.read(entry) for entry in entries] for name, entries in content["verdicts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, verdicts: Mapping[str, Sequence[Verdict]]) -> None:
        """Where the folder cannot be written, the next run computes again: nothing is lost."""
        entries = {name: [asdict(verdict) for verdict in several] for name, several in verdicts.items() if several}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_io.replace(self.file, json.dumps({"format": FORMAT, "verdicts": entries}), mode=0o600)
        except OSError:
            return


def may_be_kept(finding: Finding) -> bool:
    """Whether a finding says the same until something changes."""
    return finding.severity == "ok" or (finding.severity == "warning" and finding.is_lasting)


def subjects_of(checks: Iterable[Check]) -> list[Subject]:
    """All that these checks depend on, once each; of a check about the moment nothing needs to be known."""
    return list(
        dict.fromkeys(name for check in checks if "moment" not in check.depends_on for name in check.depends_on)
    )
