"""A server that speaks as much of MLflow's REST as a run needs, and can stop answering: hang, refuse, or die."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {
    "experiments/search": {"experiments": []},
    "experiments/create": {"experiment_id": "1"},
    "runs/create": {"run": {"info": {"run_id": "r", "experiment_id": "1", "artifact_uri": "file:///tmp"}, "data": {}}},
}


@dataclass
class Server:
    """What a run sent: `steps` of its metrics, and its `status` at the end."""

    address: str
    steps: list[int] = field(default_factory=list[int])
    status: str | None = None


@contextmanager
def hanging() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a port that nobody listens on: it is bound, so that nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def answering(*, dies_after: int | None = None) -> Iterator[Server]:
    """A server that answers; after the metrics of step `dies_after` it says nothing more."""
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
            if dies_after is not None and server.steps and server.steps[-1] >= dies_after:
                gone.wait()
                self.close_connection = True
                return
            what = self.path.partition("/mlflow/")[2]
            if what == "runs/log-batch" and asked.get("metrics"):
                server.steps.append(int(asked["metrics"][0]["step"]))
            if what == "runs/update":
                server.status = asked.get("status")
            self.reply(ANSWERS.get(what, {}))

        def reply(self, content: dict[str, Any]) -> None:
            text = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False
    server = Server(f"http://127.0.0.1:{httpd.server_address[1]}")
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        gone.set()
        httpd.shutdown()
        httpd.server_close()
