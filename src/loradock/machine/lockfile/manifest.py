"""The image's manifest: the SHA-256 of every file of its environment, in the format of sha256sum.

RECORD lies beside the files that it vouches for, so whoever changes one can change both. The manifest covers RECORD
and byte-code too, and its own digest is one line that a person can keep elsewhere (the image has it as a label).
"""

from __future__ import annotations

import re
from pathlib import Path

from loradock.errors import EnvironmentUnfit, Problem

NAME = "manifest.sha256"
LINE = re.compile(r"([0-9a-f]{64}) [ *](/.+)")


def read_manifest(path: Path) -> dict[str, bytes]:
    """{absolute path: SHA-256}; EnvironmentUnfit with each line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentUnfit(f"cannot read {path}: {error}", hint="build or pull the image again") from error
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        match = LINE.fullmatch(line)
        if match is None:
            problems.append(Problem(what="not `sha256  /path`", file=str(path), line=number))
        elif match[2] in files:
            problems.append(Problem(what=f"{match[2]} is named twice", file=str(path), line=number))
        else:
            files[match[2]] = bytes.fromhex(match[1])
    if problems or not files:
        raise EnvironmentUnfit(f"{path} is not a manifest", hint="build or pull the image again", problems=problems)
    return files
