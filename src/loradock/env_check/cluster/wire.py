"""Lines of JSON between two ranks, with a sign of life each second, so that a silent peer is told from a busy one."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

BEAT_SECONDS = 1.0
SILENT_SECONDS = 20.0
BEAT = b'{"beat": 1}\n'
READ_BYTES = 1 << 16
LONGEST_BYTES = 1 << 24


class Gone(Exception):
    """The other side closed, or its process ended."""


class Silent(Exception):
    """The other side gave no sign of life for longer than its limit."""


class Channel:
    """One connection to another rank. Sending is safe from several threads; reading is for one."""

    def __init__(self, connection: socket.socket, *, silent_seconds: float = SILENT_SECONDS) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(silent_seconds)
        self.connection, self.silent_seconds = connection, silent_seconds
        self.heard = time.monotonic()
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; raises Gone where nobody takes it."""
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, line: bytes) -> None:
        """Send a line that is ready; raises Gone where nobody takes it."""
        try:
            with self._sending:
                self.connection.sendall(line)
        except OSError as failure:
            raise Gone(str(failure)) from failure

    def receive(self, *, until: float | None = None) -> dict[str, Any] | None:
        """The next message, None where the time (of time.monotonic) is up; raises Gone or Silent."""
        self.heard = time.monotonic()
        while True:
            if message := self.take():
                return message
            moment = time.monotonic()
            if until is not None and moment >= until:
                return None
            ends = self.heard + self.silent_seconds
            if moment >= ends:
                raise Silent
            self.fill(min(ends, until if until is not None else ends) - moment)

    def take(self) -> dict[str, Any] | None:
        """A message that was read already; signs of life are swallowed."""
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            try:
                message = json.loads(line)
            except ValueError as foreign:
                raise Gone("it does not speak as a rank does") from foreign
            if "beat" not in message:
                return message
        return None

    def fill(self, seconds: float) -> None:
        """Wait at most this long for anything to read, and read it."""
        if not select.select([self.connection], [], [], max(0.0, seconds))[0]:
            return
        try:
            read = self.connection.recv(READ_BYTES)
        except OSError as failure:
            raise Gone(str(failure)) from failure
        if not read or len(self._buffer) > LONGEST_BYTES:
            raise Gone("it closed the connection")
        self._buffer += read
        self.heard = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.connection.close()


class Beating:
    """A thread that gives a sign of life on channels while this process is busy with its part."""

    def __init__(self, channels: Callable[[], Iterable[Channel]]) -> None:
        self._channels = channels
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="net-check heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            for channel in list(self._channels()):
                with contextlib.suppress(Gone):  # whoever reads from it finds out
                    channel.send_raw(BEAT)

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(timeout=2 * BEAT_SECONDS)
