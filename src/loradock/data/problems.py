"""Bad rows, collected over all sources so that one error names them all, the same fault of a file once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from loradock.errors import DataError, Problem

PROBLEMS_KEPT = 1000
PLACES_SHOWN = 3
SKIP_BAD = "--set data.on_bad_row=skip"


@dataclass(frozen=True, kw_only=True)
class BadRow(Problem):
    """A row that cannot be learned, in a file that can be read on after it: `data.on_bad_row` may leave it out."""


@dataclass
class Problems:
    """What is wrong over all files: every problem counted; the first kinds kept, each with its first places.

    `can_skip`: what reads the rows has a configuration in which bad ones may be left out.
    """

    count: int = 0
    can_skip: bool = False
    kinds: dict[tuple[str | None, str, str | None], Problem] = field(
        default_factory=dict[tuple[str | None, str, str | None], Problem]
    )

    def add(self, problem: Problem) -> None:
        """Count it: with those of its file that say the same, or as a new kind while there are few."""
        self.count += 1
        kind = (problem.file, problem.what, problem.hint)
        same = self.kinds.get(kind)
        if same:
            also = (*same.also, problem.place) if len(same.also) < PLACES_SHOWN - 1 else same.also
            self.kinds[kind] = replace(same, count=same.count + 1, also=also)
        elif len(self.kinds) < PROBLEMS_KEPT:
            self.kinds[kind] = problem

    def extend(self, others: Problems) -> None:
        """Take in those that another has collected."""
        self.count += others.count
        for kind, problem in others.kinds.items():
            self.kinds.setdefault(kind, problem)

    def check(self, *, files: Sequence[str], share: float = 0.0, max_dropped: float = 1.0) -> None:
        """DataError where there were any, in the order of `files` and their lines.

        `share`: of the rows of that part (trained or validated on) of which most are bad; the hint allows it.
        """
        if not self.count:
            return
        noun = "problem" if self.count == 1 else "problems"
        place = {file: number for number, file in enumerate(files)}
        in_order = sorted(self.kinds.values(), key=lambda kind: (place.get(kind.file or "", 0), abs(kind.line or 0)))
        hints = [problem.hint or "" for problem in in_order]
        are_rows = all(isinstance(problem, BadRow) for problem in in_order)
        hint = "do what stands in brackets" if all(hints) else "fix or remove these rows"
        hint = "add the options in brackets" if all("--set " in each for each in hints) else hint
        if are_rows and self.can_skip and not all(hints) and share < 1:
            more = f" --set data.max_dropped={math.ceil(share * 100) / 100:g}" if share > max_dropped else ""
            hint = f"{hint}, then run again; or {SKIP_BAD}{more} leaves them out"
        else:
            hint = f"{hint}, then run again"
        raise DataError(f"{self.count} {noun} in the data", hint=hint, problems=in_order, share=share)
