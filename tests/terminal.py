"""The command line on a real terminal of a given width."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from faults.forking import POLL_SECONDS, Forking

ATTACH = """
import os
terminal = os.open({name!r}, os.O_RDWR | os.O_NOCTTY)
for stream in {streams}:
    os.dup2(terminal, stream)
os.close(terminal)
"""


def on_a_terminal(
    forking: Forking,
    place: Path,
    *arguments: str | Path,
    columns: int,
    term: str = "xterm",
    streams: Sequence[int] = (1, 2),
) -> str:
    """What `loradock`, forked, writes to a terminal this wide, without colours; its exit code has to be 0."""
    seen, terminal = pty.openpty()
    code = ATTACH.format(name=os.ttyname(terminal), streams=streams)
    environment = {"COLUMNS": str(columns), "TERM": term, "NO_COLOR": "1"}
    command = forking.start(place, *map(str, arguments), code=code, **environment)
    while not select.select([seen], [], [], POLL_SECONDS)[0] and command.ended() is None:
        pass  # it has not attached itself yet
    os.close(terminal)
    chunks: list[bytes] = []
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(seen, 65536):
            chunks.append(chunk)
    os.close(seen)
    assert command.finish() == 0, command.text()
    return b"".join(chunks).decode()


def lines_at(forking: Forking, place: Path, columns: int, *arguments: str | Path) -> list[str]:
    """The lines of stdout alone, on one that obeys no sequence."""
    return on_a_terminal(forking, place, *arguments, columns=columns, term="dumb", streams=(1,)).split("\r\n")
