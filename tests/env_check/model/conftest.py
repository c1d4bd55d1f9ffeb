"""A configuration, a model that may be spoilt, and a hub that is not there or answers as told."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loradock import demo

BASE = Path(demo.__file__).parent / "base"
ROWS = BASE.parent / "train.jsonl"
Write = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo's base that may be spoilt."""
    return Path(shutil.copytree(BASE, tmp_path / "tiny-base"))


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Write a configuration: written(model={...}, data={...}) gives its path."""

    def write(**sections: Any) -> str:
        sections.setdefault("model", {"name": str(BASE)})
        sections.setdefault("data", {"sources": [str(ROWS)]})
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps(sections), encoding="utf-8")
        return str(file)

    return write


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str | None]:
    """The environment of a machine with an empty hub cache, no token, and a hub that nobody answers for."""
    return {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        **dict.fromkeys(("HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy")),
        **dict.fromkeys(("TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "ALL_PROXY")),
    }


class Answers(BaseHTTPRequestHandler):
    """A hub as one HEAD request sees it: what it answers is in the model's name."""

    def do_HEAD(self) -> None:
        status, reason = {
            "gated": (401, "GatedRepo"),
            "moved": (404, "RevisionNotFound"),
            "busy": (503, ""),
        }.get(self.path.split("/")[2], (200, ""))
        if "authorization" in self.headers and status == 401:
            status = 403
        self.send_response(status)
        self.send_header("X-Error-Code", reason)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
