"""What a rank tells of itself when it comes, and the peer that rank 0 makes of it."""

from __future__ import annotations

import socket
from typing import Any

from loradock.env_check.cluster.base import Me, Peer, place_here
from loradock.env_check.cluster.interfaces import (
    Interface,
    chosen_by_nccl,
    holder,
    interfaces,
    is_loopback,
    plain_address,
)
from loradock.facts import Facts
from loradock.machine import Host

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def introduction(me: Me, connection: socket.socket | None) -> dict[str, Any]:
    """Who this rank is; its address is that of its connection to rank 0, or of the interface that it is told to use."""
    found = interfaces(me.host)
    own = plain_address(connection.getsockname()[0]) if connection else ""
    named = named_interface(me.host, me.facts, found)
    address = named.addresses[0] if named and named.addresses else own
    interface = holder(address, found)
    return {
        "rank": me.rank,
        "token": me.token,
        "host": socket.gethostname(),
        "place": place_here(me.host.read_text("/proc/sys/kernel/random/boot_id") or socket.gethostname()),
        "address": address,
        "port": me.listener.getsockname()[1],
        "interface": interface.name if interface else None,
        "mtu_bytes": interface.mtu_bytes if interface else None,
        "speed_mbit": interface.speed_mbit if interface else None,
        "device": me.facts.gpu.name if me.facts.has_gpu else processor(me.host),
        "has_gpu": me.facts.has_gpu,
    }


def peer_of(told: dict[str, Any]) -> Peer:
    """The peer that introduced itself so. Raises KeyError or TypeError where it told something else."""
    return Peer(**{key: value for key, value in told.items() if key != "token"})


def named_interface(host: Host, facts: Facts, found: dict[str, Interface]) -> Interface | None:
    """The interface that NCCL (with a GPU) or gloo is told to use, where it is there."""
    value = host.environ.get(NCCL if facts.has_gpu else GLOO, "")
    if not value:
        return None
    names = [name for name, each in found.items() if each.addresses]
    chosen = chosen_by_nccl(value, names) if facts.has_gpu else [name for name in value.split(",") if name in names]
    if facts.has_gpu and value.startswith("^"):  # it says what not to use, and leaves the rest to the routes
        return None
    return found[chosen[0]] if chosen else None


def processor(host: Host) -> str:
    """The model of the CPU, as the kernel names it."""
    for line in (host.read_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def gloo_address(host: Host, found: dict[str, Interface]) -> str | None:
    """The address that gloo offers to its peers: its named interface's, else what the host's name resolves to.

    None where the name resolves to nothing, or to nothing that this machine holds: then gloo takes the loopback.
    """
    named = host.environ.get(GLOO, "").split(",")[0]
    if named:
        return next(iter(found[named].addresses), None) if named in found else None
    try:
        resolved = [plain_address(str(each[4][0])) for each in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return None
    return next((each for each in resolved if holder(each, found) or is_loopback(each)), None)
