"""The network interfaces of this process's namespace, and which of them leads to an address."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loradock.machine import Host

# Of the kernel's include/uapi/linux/sockios.h; an `ifreq` is 40 bytes on 64-bit machines.
SIOCGIFCONF, SIOCGIFMTU = 0x8912, 0x8921
REQUEST_BYTES, NAME_BYTES = 40, 16
MOST_ADDRESSES = 512


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One interface; `speed_mbit` is what it states of its link, None where it states nothing."""

    name: str
    addresses: tuple[str, ...]
    mtu_bytes: int | None = None
    speed_mbit: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        return asdict(self)


def interfaces(host: Host) -> dict[str, Interface]:
    """All interfaces that are there, by name."""
    addresses = _addresses(host)
    return {
        name: Interface(
            name=name,
            addresses=tuple(addresses.get(name, ())),
            mtu_bytes=_mtu_bytes(name),
            speed_mbit=_speed_mbit(host, name),
        )
        for _, name in socket.if_nameindex()
    }


def _addresses(host: Host) -> dict[str, list[str]]:
    """Addresses by interface: IPv4's, second ones too, by ioctl; IPv6's from /proc/net/if_inet6."""
    found_interfaces: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        space = ctypes.create_string_buffer(REQUEST_BYTES * MOST_ADDRESSES)
        request = struct.pack("iL", len(space), ctypes.addressof(space))
        length = struct.unpack("iL", fcntl.ioctl(asking.fileno(), SIOCGIFCONF, request))[0]
    for begin in range(0, length, REQUEST_BYTES):
        name = space.raw[begin : begin + NAME_BYTES].split(b"\0")[0].decode().partition(":")[0]
        found_interfaces.setdefault(name, []).append(socket.inet_ntoa(space.raw[begin + 20 : begin + 24]))
    for line in (host.read_text("/proc/net/if_inet6") or "").splitlines():
        fields = line.split()
        found_interfaces.setdefault(fields[-1], []).append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    return found_interfaces


def _mtu_bytes(name: str) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        answer = fcntl.ioctl(asking.fileno(), SIOCGIFMTU, struct.pack("16si20x", name.encode(), 0))
        return struct.unpack("16si20x", answer)[1]
    return None


def _speed_mbit(host: Host, name: str) -> int | None:
    """A virtual interface states -1 or refuses."""
    text = (host.read_text(f"/sys/class/net/{name}/speed") or "").strip()
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 31 else None


def holder(address: str, known: Mapping[str, Interface]) -> Interface | None:
    """The interface that holds this address."""
    plain = plain_address(address)
    return next((interface for interface in known.values() if plain in interface.addresses), None)


def plain_address(address: str) -> str:
    """Without the zone of a link-local address; an IPv4 address in IPv6's clothes as the former."""
    text = address.partition("%")[0]
    with contextlib.suppress(ValueError):
        mapped = getattr(ipaddress.ip_address(text), "ipv4_mapped", None)
        return str(mapped or ipaddress.ip_address(text))
    return text


def is_loopback(address: str) -> bool:
    """Whether no other machine can reach this address."""
    try:
        return ipaddress.ip_address(plain_address(address)).is_loopback
    except ValueError:
        return False


def source_of(address: str) -> str:
    """The own address that the kernel takes on the way to this one; sends nothing. Raises OSError without a route."""
    family = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((address, 9))
        return plain_address(asking.getsockname()[0])


def chosen_by_nccl(value: str, names: list[str]) -> list[str]:
    """The interfaces that NCCL_SOCKET_IFNAME chooses: beginnings of names, `=` whole names, `^` all others."""
    is_excluding, text = value.startswith("^"), value.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    choices = [choice for choice in text.split(",") if choice]
    matched = [
        name for name in names if any(name == choice if is_exact else name.startswith(choice) for choice in choices)
    ]
    return [name for name in names if name not in matched] if is_excluding else matched
