"""What to try where a path does not exist: the nearest name beside it, or the command that lists its folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from loradock.text.suggest import did_you_mean, nearest

ALIKE = 0.5
"""The ratio of letters from which a name in the same folder is near."""


def hint(path: Path, shown: str) -> str:
    """The question for the nearest name, its folder as it is shown; or how to list the nearest folder that is there."""
    before = shown.rstrip("/")[: -len(path.name)]
    return did_you_mean(path.name, siblings(path), before=before, alike=ALIKE) or listing(path)


def sibling(path: Path) -> Path | None:
    """The path in the same folder whose name is nearest; None where none is near."""
    near = nearest(path.name, siblings(path), alike=ALIKE)
    return path.parent / near if near else None


def siblings(path: Path) -> list[str]:
    """The names in its folder; none of one that is not there or cannot be listed, or of a name that none can have."""
    try:
        return sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return []


def listing(path: Path) -> str:
    """The command that lists the nearest folder of a path that is there."""
    return f"ls {shlex.quote(next((str(each) for each in path.parents if os.path.isdir(each)), '.'))}"
