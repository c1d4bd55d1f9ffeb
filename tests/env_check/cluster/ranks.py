"""Ranks of a net-check, forked with everything imported, in the environment that a launcher gives."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.forking import Command, Forking

NO_MORE_SECONDS = 150.0


@dataclass(frozen=True)
class Ranks:
    """Those that were started, by rank."""

    folder: Path
    commands: Mapping[int, Command]

    def codes(self, *, seconds: float = NO_MORE_SECONDS) -> dict[int, int]:
        """The exit codes, once all have ended."""
        return {rank: each.finish(seconds=seconds) for rank, each in self.commands.items()}

    def text(self, rank: int) -> str:
        return self.commands[rank].text()

    def content(self) -> dict[str, Any]:
        """What rank 0 printed with --json."""
        text = self.text(0)
        return json.loads(text[text.index("{\n") :])

    def named(self) -> list[tuple[str, str, str]]:
        """(stage, severity, what) of each finding that is not ok."""
        return [
            (stage["stage"], finding["severity"], finding["what"])
            for stage in self.content()["stages"]
            for finding in stage["findings"]
            if finding["severity"] != "ok"
        ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(
    forking: Forking,
    folder: Path,
    *options: str,
    ranks: Sequence[int],
    world_size: int | None = None,
    codes: Mapping[int, str] | None = None,
    address: str = "127.0.0.1",
    local: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ranks:
    """Start these ranks; `codes` are run at the beginning of a rank, `local` is how many share a host."""
    size = world_size or len(ranks)
    shared = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(local or size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        **(environment or {}),
    }
    commands: dict[int, Command] = {}
    for rank in ranks:
        place = folder / f"rank-{rank}"
        place.mkdir()
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % (local or size))}
        code = (codes or {}).get(rank, "")
        commands[rank] = forking.start(place, "net-check", "--json", *options, code=code, **shared, **own)
    return Ranks(folder, commands)
