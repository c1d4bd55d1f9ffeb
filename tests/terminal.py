"""The command line on a real terminal of a given width."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def lines_at(columns: int, *arguments: str | Path) -> list[str]:
    """What `loradock` prints on a terminal of this many columns, without colours; its exit code has to be 0."""
    seen, terminal = pty.openpty()
    command = [sys.executable, "-m", "loradock", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, env=environment) as process:
        os.close(terminal)
        chunks: list[bytes] = []
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(seen, 65536):
                chunks.append(chunk)
        told = process.communicate()[1]
    os.close(seen)
    assert process.returncode == 0, told.decode()
    return b"".join(chunks).decode().split("\r\n")
