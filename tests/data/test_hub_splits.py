"""Configurations and splits of a hub's data sets, by the real library against a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.thin(1)

COMMIT = "b2" * 20
CARD = """---
configs:
- config_name: small
  data_files:
  - {split: train, path: small/train.jsonl}
  - {split: test, path: small/test.jsonl}
- config_name: large
  data_files:
  - {split: train, path: large/train.jsonl}
---
"""


def rows(name: str, count: int) -> bytes:
    return "".join(f"{json.dumps({'prompt': f'{name} {n}', 'completion': ' yes'})}\n" for n in range(count)).encode()


FILES = {
    "README.md": CARD.encode(),
    "small/train.jsonl": rows("small train", 5),
    "small/test.jsonl": rows("small test", 3),
    "large/train.jsonl": rows("large train", 7),
}


class Hub(BaseHTTPRequestHandler):
    """One data set at one commit, as the public hub answers for it."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = self.rfile.read(length)
        try:
            paths = json.loads(asked)["paths"]
        except ValueError:
            from urllib.parse import parse_qs

            paths = parse_qs(asked.decode())["paths"]
        self.answer([entry(path) for path in paths if path in FILES])

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        _, mark, name = path.partition(f"/resolve/{COMMIT}/")
        if mark and name in FILES:
            self.file(FILES[name])
        elif f"/tree/{COMMIT}" in path:
            below = path.partition(f"/tree/{COMMIT}")[2].strip("/")
            names = [name for name in FILES if name.startswith(f"{below}/" if below else "")]
            self.answer([entry(name) for name in names])
        elif path in (f"/api/datasets/owner/rows/revision/{COMMIT}", "/api/datasets/owner/rows"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer({"id": "owner/rows", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})
        else:
            self.answer({"error": "none"}, status=200 if path == "/" else 404)

    def answer(self, content: object, status: int = 200) -> None:
        self.sent(json.dumps(content).encode(), status=status, kind="application/json")

    def file(self, content: bytes) -> None:
        first, last = 0, len(content)
        if asked := self.headers.get("Range"):
            start, _, stop = asked.removeprefix("bytes=").partition("-")
            first, last = int(start), min(last, int(stop or last) + 1)
        self.sent(content[first:last], status=206 if asked else 200, kind="application/octet-stream", whole=content)

    def sent(self, content: bytes, *, status: int, kind: str, whole: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        if whole:
            self.send_header("ETag", f'"{hashlib.sha1(whole).hexdigest()}"')
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def entry(name: str) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(FILES[name]), "oid": hashlib.sha1(FILES[name]).hexdigest()}


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


READ = """
import sys
from loradock.config.sections.data import SourceConfig
from loradock.data.sources import HeldOut, samples
from loradock.errors import LoradockError
for path in sys.argv[1:]:
    try:
        made = HeldOut(path=path[1:], split="") if path.startswith("=") else SourceConfig(path=path)
        found = [sample.prompt for _, sample in samples(made)]
        print(len(found), found[0])
    except LoradockError as error:
        print(type(error).__name__, error.what, "hint:", error.hint)
"""


def test_a_configuration_and_a_split_are_read_and_a_wrong_name_is_answered_with_those_there_are(
    hub: str, tmp_path: Path
) -> None:
    name = f"hub:owner/rows@{COMMIT}"
    switches = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN")
    known = {key: value for key, value in os.environ.items() if key not in switches}
    env = known | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
    asked = [f"{name}#small/test", f"{name}#large/", f"{name}#small/validation", f"{name}#tiny/train", name]
    asked += [f"={name}#small/train", f"={name}#small/"]
    done = subprocess.run(
        [sys.executable, "-c", READ, *asked], env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    said = done.stdout.splitlines()
    assert said[:2] == ["3 small test 0", "7 large train 0"], done.stderr[-3000:]
    assert said[2].startswith("DataError hub:owner/rows#small/validation: ")
    assert all(split in said[2] for split in ("train", "test"))
    assert said[3].startswith("DataError hub:owner/rows#tiny/train: ")
    assert said[4].startswith("DataError hub:owner/rows#train: ")
    assert all("small" in line and "large" in line for line in said[3:5])
    assert f"hint: write hub:owner/rows@{COMMIT}#CONFIGURATION/SPLIT" in said[4]
    assert said[5] == "5 small train 0"
    assert said[6].startswith("DataError hub:owner/rows holds several splits: train, test")
    assert said[6].endswith(f"hint: write hub:owner/rows@{COMMIT}#small/train")
