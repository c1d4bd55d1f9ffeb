"""What each process of a run learns from its environment: which one it is, of how many, and where they meet.

The names are torchrun's. All is known beforehand (no process joins later), so that nobody has to be asked.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loradock.errors import Problem

SIOCGIFADDR = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
AUTO = "auto"
LAUNCHER = "LORADOCK_LAUNCHER"
"""What started the processes, as it was typed: `loradock launch --nproc 2`."""
LAST_WORDS = "LORADOCK_LAST_WORDS"
"""A folder where the launcher writes how processes of this machine ended: `RANK.json`; `RANK.peer` is there where it
was another process that ended this one."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """This machine's part of a run: `processes` of them here, on the machine `node` (from 0) of `nodes`."""

    processes: int
    nodes: int
    node: int
    host: str
    port: int

    def ranks(self) -> range:
        """The ranks that run here."""
        return range(self.node * self.processes, (self.node + 1) * self.processes)

    def environment(self, rank: int) -> dict[str, str]:
        """The environment variables of the process of this rank."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % self.processes),
            "WORLD_SIZE": str(self.processes * self.nodes),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def mistakes(*, processes: str, nodes: int, node: int | None, meeting: str | None) -> list[Problem]:
    """Everything in what was asked for that no place can be made of. `processes` is a number or AUTO."""
    problems: list[Problem] = []
    if processes != AUTO and not (processes.isdecimal() and int(processes)):
        problems.append(Problem(what=f"--nproc {processes} is not a number or auto", hint="--nproc 2"))
    for option, value in (("--node-rank", node), ("--rdzv", meeting)):
        if nodes > 1 and value in (None, ""):
            hint = f"loradock launch --nnodes {nodes} --node-rank 0 --rdzv HOST_OF_NODE_0:29500 train ..."
            problems.append(Problem(what=f"--nnodes {nodes} needs {option}", hint=hint))
    if node is not None and not 0 <= node < nodes:
        problems.append(
            Problem(
                what=f"--node-rank {node} is out of range for {nodes} node(s)", hint=f"--node-rank 0 to {nodes - 1}"
            )
        )
    if meeting and address(meeting) is None:
        problems.append(Problem(what=f"--rdzv {meeting} is not HOST:PORT", hint="--rdzv node-0:29500"))
    return problems


def place_of(*, processes: int, nodes: int, node: int | None, meeting: str | None) -> Place:
    """The place, from what was asked for without a mistake."""
    host, port = (address(meeting) if meeting else None) or ("127.0.0.1", free_port())
    return Place(processes=processes, nodes=nodes, node=node or 0, host=host, port=port)


def address(text: str) -> tuple[str, int] | None:
    """HOST:PORT, also [IPV6]:PORT. None for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) < 65536 else None


def continuing(directory: Path) -> str:
    """What continues a run that this process was a part of, for people: started as this process was."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "the same command continues"
    remedy = f"{os.environ.get(LAUNCHER, 'loradock')} train --resume --output {shlex.quote(str(directory))}"
    return f"the same command, or {remedy}, continues"


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def interfaces(place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """For several machines: the network interface that leads to the meeting place, for gloo and NCCL.

    They would take the one that this machine's name leads to, which is the loopback on many. What is set already stays;
    nothing where the interface cannot be told (IPv6).
    """
    if place.nodes == 1:
        return {}
    name = interface_to(place.host, place.port)
    return {interface: name for interface in INTERFACES if name and not environ.get(interface)}


def interface_to(host: str, port: int) -> str | None:
    """The interface whose IPv4 address this machine would speak from to that host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return None
        mine = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if address_of(name, probe) == mine), None)


def address_of(name: str, probe: socket.socket) -> str | None:
    """The IPv4 address of an interface, None where it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
