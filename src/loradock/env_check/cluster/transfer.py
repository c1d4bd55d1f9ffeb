"""Timed traffic between two ranks over sockets of their own: round trips, then bytes in each direction."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Any

from loradock.distributed.rendezvous import reason
from loradock.env_check.cluster.base import Me

CONNECT_SECONDS = 5.0
PING_BYTES, PINGS, PING_SECONDS = 64, 100, 1.0
BULK_BYTES, BULK_SECONDS = 32 << 20, 1.0
BLOCK_BYTES = 1 << 20
HEADER_BYTES = 256
KINDS = ("ping", "down", "up")
LIMIT_SECONDS = 3 * CONNECT_SECONDS + PING_SECONDS + 2 * BULK_SECONDS
"""The longest that either side takes."""


def caller(me: Me, *, address: str, port: int) -> dict[str, Any]:
    """Ping, fetch, send. {"seconds": of a round trip of the quicker quarter, "received": MB/s}, or a failure."""
    try:
        with _connected(me, address, port, "ping") as connection:
            seconds = _round_trips(connection)
        with _connected(me, address, port, "down") as connection:
            received = _receive(connection)
        with _connected(me, address, port, "up") as connection:
            _send(connection)
    except OSError as failure:
        return {"failure": reason(failure)}
    return {"seconds": seconds, "received": received}


def answerer(me: Me) -> dict[str, Any]:
    """Take the three calls of a peer. {"received": MB/s}, or a failure."""
    received = 0.0
    try:
        for kind in KINDS:
            with _accepted(me, kind) as connection:
                if kind == "ping":
                    _echo(connection)
                elif kind == "down":
                    _send(connection)
                else:
                    received = _receive(connection)
    except OSError as failure:
        return {"failure": reason(failure)}
    return {"received": received}


@contextlib.contextmanager
def _connected(me: Me, address: str, port: int, kind: str) -> Iterator[socket.socket]:
    """A connection whose first bytes say who calls; what is unsent at its end is dropped."""
    with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection:
        _prepare(connection)
        connection.sendall(_header(me, kind))
        yield connection


@contextlib.contextmanager
def _accepted(me: Me, kind: str) -> Iterator[socket.socket]:
    """The next call of this kind by one that knows the token; another one is sent away."""
    until = time.monotonic() + CONNECT_SECONDS + PING_SECONDS + BULK_SECONDS
    while True:
        me.listener.settimeout(max(0.01, until - time.monotonic()))
        connection, _ = me.listener.accept()
        with connection:
            connection.settimeout(CONNECT_SECONDS)
            _prepare(connection)
            if _exactly(connection, HEADER_BYTES) == _header(me, kind):
                yield connection
                return


def _header(me: Me, kind: str) -> bytes:
    return f"loradock net-check {me.token} {kind}\n".encode().ljust(HEADER_BYTES)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _round_trips(connection: socket.socket) -> float:
    """Seconds of a round trip: the lower quartile, which load on the processors hardly moves."""
    seconds: list[float] = []
    until = time.perf_counter() + PING_SECONDS
    while len(seconds) < PINGS and (not seconds or time.perf_counter() < until):
        began = time.perf_counter()
        connection.sendall(bytes(PING_BYTES))
        _exactly(connection, PING_BYTES)
        seconds.append(time.perf_counter() - began)
    return statistics.quantiles(seconds, n=4)[0] if len(seconds) > 1 else seconds[0]


def _echo(connection: socket.socket) -> None:
    """Until the other side closes, which it may do at once."""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(PING_BYTES):
            connection.sendall(data)


def _receive(connection: socket.socket) -> float:
    """MB/s of what comes after this side said that it is ready, until all has come or the time is up."""
    buffer = bytearray(BLOCK_BYTES)
    connection.sendall(b"g")
    began = time.perf_counter()
    received = 0
    while received < BULK_BYTES and time.perf_counter() < began + BULK_SECONDS:
        connection.settimeout(max(0.01, began + BULK_SECONDS - time.perf_counter()))
        try:
            got = connection.recv_into(buffer)
        except TimeoutError:
            break
        if not got:
            break
        received += got
    return received / 1e6 / (time.perf_counter() - began)


def _send(connection: socket.socket) -> None:
    """Send all of it; the receiver may close before."""
    _exactly(connection, 1)
    block = bytes(BLOCK_BYTES)
    connection.settimeout(BULK_SECONDS + CONNECT_SECONDS)
    with contextlib.suppress(ConnectionError):
        for _ in range(BULK_BYTES // BLOCK_BYTES):
            connection.sendall(block)
        connection.recv(1)  # until the receiver closes: closing first would drop what is on its way


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    """So many bytes; ConnectionError where the other side closes before."""
    read = b""
    while len(read) < size_bytes:
        got = connection.recv(size_bytes - len(read))
        if not got:
            raise ConnectionError("the other side closed")
        read += got
    return read
