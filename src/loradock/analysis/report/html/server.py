"""The report of runs that go on, served to this machine alone: made anew when a file of theirs was written."""

from __future__ import annotations

import errno
import hashlib
import socketserver
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from loradock.analysis.report.html import render
from loradock.analysis.report.html.runs import read, stamp
from loradock.errors import LoradockError, UsageError

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PATIENCE_SECONDS = 10.0


class Server(ThreadingHTTPServer):
    """Answers GET / with the page and GET /version with what it was made from. `port` 0 takes a free one.

    It listens on the loopback address only. UsageError where the port is taken or not allowed.
    """

    daemon_threads = True

    def __init__(self, directories: Sequence[Path], *, port: int = 0) -> None:
        self.directories = tuple(directories)
        self.made: tuple[str, bytes] = ("", b"")
        self.one_at_a_time = threading.Lock()
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            hint = "leave out --port to take a free one"
            raise UsageError(f"port {port} cannot be had: {error.strerror}", hint=hint) from error

    def server_bind(self) -> None:
        """Bind without asking a name server what the loopback address is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        """What a browser that was led here by us says it wants; another name is that of somebody else's page."""
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def version(self) -> str:
        """Changes when a file of a run was written."""
        return hashlib.sha256(repr(stamp(self.directories)).encode()).hexdigest()[:16]

    def page(self) -> bytes:
        """The page as it is now, made anew where something was written since. InputMissing where a run is gone."""
        with self.one_at_a_time:
            version = self.version()
            if version != self.made[0]:
                self.made = version, render.html(read(self.directories), live_version=version).encode()
            return self.made[1]


class Handler(BaseHTTPRequestHandler):
    """One request. Anything but GET is not implemented."""

    timeout = PATIENCE_SECONDS
    server_version = "loradock"
    sys_version = ""

    def do_GET(self) -> None:
        """The page or its version, to who asked for this host by its own name."""
        server = cast("Server", self.server)
        if self.headers.get("Host") not in server.hosts:
            self.answer(HTTPStatus.MISDIRECTED_REQUEST, b"this is not the host that was asked for\n")
            return
        try:
            if self.path == "/":
                self.answer(HTTPStatus.OK, server.page(), kind="text/html")
            elif self.path == "/version":
                self.answer(HTTPStatus.OK, server.version().encode())
            else:
                self.answer(HTTPStatus.NOT_FOUND, b"there is only /\n")
        except LoradockError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())

    def answer(self, status: HTTPStatus, body: bytes, *, kind: str = "text/plain") -> None:
        """Send one whole answer."""
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the screen belongs to the command."""
