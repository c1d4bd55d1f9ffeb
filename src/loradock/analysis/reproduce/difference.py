"""One thing that is not as it was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["nothing", "last bits", "results"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing, as it was and as it is now, and the most that it may change."""

    name: str
    was: str
    now: str
    changes: Effect

    @property
    def line(self) -> str:
        """For a person."""
        effect = {
            "nothing": "changes nothing",
            "last bits": "may change the last bits",
            "results": "may change results",
        }
        return f"{self.name}: {self.was} -> {self.now} ({effect[self.changes]})"
