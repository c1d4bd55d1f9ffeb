"""Network namespaces as hosts: each with a name of its own and an interface `net0` on one switch between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

# What a forked command does first: go into the namespace, and take the host's name.
ENTER = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
assert libc.setns(os.open("/run/netns/{namespace}", os.O_RDONLY), 0x40000000) == 0
assert libc.unshare(0x04000000) == 0
socket.sethostname("{name}")
"""


@dataclass(frozen=True)
class Hosts:
    """So many hosts, 10.9.0.1 and up."""

    namespaces: tuple[str, ...]

    def code(self, number: int) -> str:
        """Makes a forked command one of this host."""
        return ENTER.format(namespace=self.namespaces[number], name=f"host-{number}")

    def address(self, number: int) -> str:
        return f"10.9.0.{number + 1}"

    def on(self, number: int, *command: str) -> None:
        """Run a command in the namespace of a host."""
        subprocess.run(["ip", "netns", "exec", self.namespaces[number], *command], check=True, capture_output=True)

    def slow(self, number: int, rate: str) -> None:
        """What this host sends is cut to a rate by a token bucket."""
        self.on(number, *f"tc qdisc add dev net0 root tbf rate {rate} burst 16k latency 100ms".split())


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make them; skips the test where this machine allows none."""
    own = f"ld{os.getpid()}"
    switch, namespaces = f"{own}s", tuple(f"{own}h{number}" for number in range(count))
    try:
        try:
            made(
                f"ip netns add {switch}", f"ip -n {switch} link add br0 type bridge", f"ip -n {switch} link set br0 up"
            )
        except (OSError, subprocess.CalledProcessError) as failure:
            pytest.skip(f"no network namespaces here: {getattr(failure, 'stderr', failure)}")
        for number, namespace in enumerate(namespaces):
            made(
                f"ip netns add {namespace}",
                f"ip -n {namespace} link set lo up",
                f"ip -n {switch} link add port{number} type veth peer name net0 netns {namespace}",
                f"ip -n {switch} link set port{number} master br0 up",
                f"ip -n {namespace} addr add 10.9.0.{number + 1}/24 dev net0",
                f"ip -n {namespace} link set net0 up",
            )
        yield Hosts(namespaces)
    finally:
        for namespace in (*namespaces, switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def made(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
