"""Patterns of paths (`*`, `?`, `[...]`, `**`): what exists under the name as it is written is no pattern."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def divided(path: Path) -> tuple[Path, str]:
    """The folder in which nothing is a wildcard, and the pattern below it; the whole path and "" where it has none.

    Brackets, `*` and `?` of a folder or a file that exists belong to its name.
    """
    folder = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    for index, part in enumerate(parts):
        if glob.has_magic(part) and not os.path.lexists(folder / part):
            return folder, "/".join(parts[index:])
        folder /= part
    return folder, ""


def matching(path: Path) -> list[Path]:
    """The files that a pattern matches, by name; none where it is no pattern."""
    folder, pattern = divided(path)
    names = sorted(glob.glob(pattern, root_dir=folder, recursive=True)) if pattern else []
    return [file for name in names if (file := folder / name).is_file()]
