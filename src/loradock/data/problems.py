"""Bad rows, collected over all sources so that one error names them all."""

from __future__ import annotations

from dataclasses import dataclass, field

from loradock.errors import DataError, Problem

PROBLEMS_KEPT = 1000


@dataclass
class Problems:
    """What is wrong over all files: every problem counted, the first ones kept."""

    count: int = 0
    kept: list[Problem] = field(default_factory=list)

    def add(self, problem: Problem) -> None:
        """Count it, and keep it while there are few."""
        self.count += 1
        if len(self.kept) < PROBLEMS_KEPT:
            self.kept.append(problem)

    def check(self, *, files: list[str]) -> None:
        """DataError where there were any, in the order of `files` and their lines."""
        if not self.count:
            return
        noun = "problem" if self.count == 1 else "problems"
        in_order = sorted(self.kept, key=lambda p: (files.index(p.file) if p.file in files else 0, p.line or 0))
        raise DataError(
            f"{self.count} {noun} in the data", hint="fix or remove these rows, then run again", problems=in_order
        )
