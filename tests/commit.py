"""What a run of tests takes of a table that is too long for one: the commit chooses, so that each gets its turn."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path


def commit() -> str:
    """HEAD of this repository, empty outside one: two runs on a commit try the same."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def turn_of(key: str, among: int) -> int:
    """A number from 0 to `among` - 1, as likely as any other: the same key, the same one."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % among
