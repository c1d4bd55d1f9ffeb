"""What to try where a path does not exist: the nearest name beside it, or the command that lists its folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from loradock.text.suggest import did_you_mean

ALIKE = 0.5
"""The ratio of letters from which a name in the same folder is near."""


def hint(path: Path, shown: str) -> str:
    """The question for the nearest name, its folder as it is shown; or how to list the nearest folder that is there."""
    try:
        names = sorted(os.listdir(path.parent))
    except (OSError, ValueError):  # no folder, one that cannot be listed, a name that none can have
        names = []
    return did_you_mean(path.name, names, before=shown.rstrip("/")[: -len(path.name)], alike=ALIKE) or listing(path)


def listing(path: Path) -> str:
    """The command that lists the nearest folder of a path that is there."""
    return f"ls {shlex.quote(next((str(each) for each in path.parents if os.path.isdir(each)), '.'))}"
