"""What each process of a run is told by its environment: which one it is, of how many, and where they meet.

The names are torchrun's. All is known beforehand (no process joins later), so that nobody has to be asked.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from loradock.errors import UsageError

SIOCGIFADDR = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


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
        """What the process of this rank is told."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % self.processes),
            "WORLD_SIZE": str(self.processes * self.nodes),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


def place_of(*, processes: int, nodes: int, node: int | None, meeting: str | None) -> Place:
    """The place, from what was asked; UsageError where that is not enough or contradicts itself."""
    if nodes > 1 and (node is None or not meeting):
        missing = "--node-rank" if node is None else "--rdzv"
        raise UsageError(
            f"--nnodes {nodes} needs {missing}",
            hint=f"loradock launch --nnodes {nodes} --node-rank 0 --rdzv HOST_OF_NODE_0:29500 train ...",
        )
    node = node or 0
    if not 0 <= node < nodes:
        raise UsageError(f"--node-rank {node} is none of {nodes} node(s)", hint=f"--node-rank 0 to {nodes - 1}")
    host, port = address(meeting) if meeting else ("127.0.0.1", free_port())
    return Place(processes=processes, nodes=nodes, node=node, host=host, port=port)


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, also [IPV6]:PORT. UsageError for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--rdzv {text} is not HOST:PORT", hint="--rdzv node-0:29500")
    return host, int(port)


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
    return {each: name for each in INTERFACES if name and not environ.get(each)}


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
