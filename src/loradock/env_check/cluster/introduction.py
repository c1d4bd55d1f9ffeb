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
    known = interfaces(me.host)
    own_address = plain_address(connection.getsockname()[0]) if connection else ""
    choice = named_interface(me.host, me.facts, known)
    address = choice.addresses[0] if choice and choice.addresses else own_address
    interface = holder(address, known)
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


def peer_of(message: dict[str, Any]) -> Peer:
    """The peer that introduced itself so. Raises KeyError or TypeError where it told something else."""
    return Peer(**{key: value for key, value in message.items() if key != "token"})


def named_interface(host: Host, facts: Facts, known: dict[str, Interface]) -> Interface | None:
    """The interface that NCCL (with a GPU) or gloo is told to use, where it is there."""
    value = host.environ.get(NCCL if facts.has_gpu else GLOO, "")
    if not value:
        return None
    names = [name for name, entry in known.items() if entry.addresses]
    names_chosen = (
        chosen_by_nccl(value, names) if facts.has_gpu else [name for name in value.split(",") if name in names]
    )
    if facts.has_gpu and value.startswith("^"):  # it says what not to use, and leaves the rest to the routes
        return None
    return known[names_chosen[0]] if names_chosen else None


def processor(host: Host) -> str:
    """The model of the CPU, as the kernel names it."""
    for line in (host.read_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def gloo_address(host: Host, known: dict[str, Interface]) -> str | None:
    """The address that gloo offers to its peers: its named interface's, else what the host's name resolves to.

    None where the name resolves to nothing, or to nothing that this machine holds: then gloo takes the loopback.
    """
    interface = host.environ.get(GLOO, "").split(",")[0]
    if interface:
        return next(iter(known[interface].addresses), None) if interface in known else None
    try:
        resolved = [plain_address(str(entry[4][0])) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return None
    return next((address for address in resolved if holder(address, known) or is_loopback(address)), None)
