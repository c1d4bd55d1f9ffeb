"""Bad rows that were left out because the configuration says so: how many, the first of each kind, or too many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from loradock.data.problems import Problems
from loradock.errors import DataError

LISTED = 10
"""Kinds of bad rows that are listed, each with its first places."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """`count` rows; `first`: what was wrong with the first kinds of them, with file and line."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def found(cls, problems: Problems) -> Self:
        """Those that a preparation collected."""
        return cls(count=problems.count, first=tuple(map(str, list(problems.kinds.values())[:LISTED])))

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """Those that the manifest of prepared data holds."""
        return cls(count=manifest.get("skipped_rows", 0), first=tuple(manifest.get("skipped", ())))

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; nothing where no row was left out."""
        return {"skipped_rows": self.count, "skipped": list(self.first)} if self.count else {}

    def notes(self, *, rows: int) -> Iterator[str]:
        """What is reported of them, beside `rows` that are left."""
        if self.count:
            yield f"{self.count:,} of {rows + self.count:,} rows are bad and left out (data.on_bad_row skip):"
            yield from self.first

    def check(self, *, rows: int, max_dropped: float) -> None:
        """DataError where they are a larger share than `max_dropped`."""
        share = self.count / max(1, rows + self.count)
        if share > max_dropped:
            listed = "\n".join(f"  {line}" for line in self.first)
            raise DataError(
                f"{self.count:,} of {rows + self.count:,} rows ({share:.1%}) are bad; data.on_bad_row skip leaves out "
                f"{max_dropped:.0%} at most (data.max_dropped):\n{listed}",
                hint=f"fix these rows; or allow it: --set data.max_dropped={-(-share * 100 // 1) / 100:g}",
                share=share,
            )
