"""The locked wheels on scratch storage: fetched in a container of the image's own Python, served to the build.

The build takes them over the loopback, so they never lie in the engine's root, and a filled scratch needs no network.
What lies there is known by an index file for each lock and Python; a file is hashed again when its size or time moved.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from loradock.delivery.image.scratch import Scratch
from loradock.files import atomic_io

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REQUIREMENT = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)
# First what is there already, without an index; only where something is missing does pip ask one. DeepSpeed is released
# as source only, of which the build makes a wheel.
FETCH = """
set -- python3 -m pip download --disable-pip-version-check --no-cache-dir --progress-bar off \
  --require-hashes --no-deps -d /wheels
fetch() {
  if ls /wheels/*.whl >/dev/null 2>&1 && "$@" --no-index --find-links /wheels >/tmp/offline.log 2>&1; then
    cat /tmp/offline.log
  else
    "$@"
  fi
}
awk '/^[a-z0-9]/ { keep = $0 !~ /^deepspeed==/ } keep' /lock >/tmp/wheels.txt
awk '/^[a-z0-9]/ { keep = $0 ~ /^deepspeed==/ } keep' /lock >/tmp/sources.txt
fetch "$@" --only-binary :all: -r /tmp/wheels.txt
if [ -s /tmp/sources.txt ]; then fetch "$@" --no-binary :all: --no-build-isolation -r /tmp/sources.txt; fi
"""
# What the container says of itself; a file of the scratch that it cannot see is left out.
ABOUT = """
import pathlib, platform, sys
nonce = pathlib.Path("/scratch-tmp/nonce")
print("cp%d%d" % sys.version_info[:2], platform.machine(), nonce.read_text() if nonce.exists() else "")
"""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locked_names(lock: str) -> dict[str, str]:
    """Package -> version, for every package that a lock names (the last one where versions differ by Python)."""
    return dict(REQUIREMENT.findall(lock))


def project_of(wheel: str) -> tuple[str, str]:
    """The normalised name and the version in a wheel's file name."""
    name, version, *_ = wheel.split("-")
    return re.sub(r"[-_.]+", "-", name).lower(), version


class WheelIndex:
    """What a lock needs on one Python and machine, as found in the scratch; kept in wheels/index-KEY.json."""

    def __init__(self, scratch: Scratch, *, lock: str, python: str, machine: str) -> None:
        self.folder = scratch.wheels
        self.hashes = frozenset(HASH.findall(lock))
        self.locked = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in REQUIREMENT.findall(lock)}
        key = hashlib.sha256(f"{lock}\n{python}\n{machine}".encode()).hexdigest()[:16]
        self.file = self.folder / f"index-{key}.json"

    def files(self) -> dict[str, Path] | None:
        """File name -> path when every wheel is there and right; None when some have to be fetched.

        A wheel whose content is not what the lock says is removed.
        """
        try:
            known = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._remove_wrong(self.folder.glob("*.whl"))
            return None
        moved = [
            self.folder / name for name, file_state in known.items() if not _is_unmoved(self.folder / name, file_state)
        ]
        if moved:
            self._remove_wrong(path for path in moved if path.exists())
            if any(not path.exists() for path in moved):
                return None
            self.write(known)
        return {name: self.folder / name for name in known}

    def write(self, names: Mapping[str, object]) -> dict[str, Path]:
        """Note that `names` are all that the lock needs here; their hashes have been verified."""
        known = {}
        for name in sorted(names):
            stat = (self.folder / name).stat()
            known[name] = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        atomic_io.replace(self.file, json.dumps(known, indent=1))
        return {name: self.folder / name for name in known}

    def _remove_wrong(self, paths: Iterable[Path]) -> None:
        """Remove files that carry a locked package's name and version but none of the lock's hashes."""
        for path in list(paths):
            if project_of(path.name) in self.locked and sha256_of(path) not in self.hashes:
                path.unlink()


def _is_unmoved(path: Path, recorded: Mapping[str, int]) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (recorded["bytes"], recorded["mtime_ns"])


def downloaded(lines: list[str]) -> set[str]:
    """The wheels and source releases that pip says it saved or found, by file name."""
    path_match = (
        re.search(r"(?:Saved|Processing|File was already downloaded) (?:file://)?/wheels/(\S+\.(?:whl|tar\.gz))", line)
        for line in lines
    )
    return {match[1] for match in path_match if match}


def kept_wheel(scratch: Scratch, source: Path) -> tuple[str, Path]:
    """A copy of a wheel in the scratch, in a folder of its sha256; (sha256, path). Same names can differ in content."""
    digest = sha256_of(source)
    copy = scratch.wheels / digest / source.name
    if not copy.exists() or sha256_of(copy) != digest:
        copy.parent.mkdir(exist_ok=True)
        part = copy.with_suffix(".part")
        shutil.copyfile(source, part)
        part.replace(copy)
    return digest, copy


@contextlib.contextmanager
def served(files: Mapping[str, Path]) -> Iterator[str]:
    """Serve exactly these files on the loopback while inside; the address, for pip's find-links."""

    class Handler(BaseHTTPRequestHandler):
        """One page of links, and the files behind them; pip's cache keeps no copy."""

        def do_GET(self) -> None:
            """Send the page or one of the files."""
            path = files.get(unquote(self.path.lstrip("/").split("?")[0]))
            if self.path == "/":
                links = "\n".join(f'<a href="{quote(name)}">{html.escape(name)}</a><br>' for name in files)
                body = f"<!DOCTYPE html><html><body>\n{links}\n</body></html>\n".encode()
                self._head(len(body), "text/html; charset=utf-8")
                self.wfile.write(body)
            elif path is None:
                self.send_error(404)
            else:
                with path.open("rb") as file:
                    self._head(path.stat().st_size, "application/octet-stream")
                    with contextlib.suppress(ConnectionError):
                        shutil.copyfileobj(file, self.wfile, 1 << 20)

        def _head(self, size: int, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the build's log has pip's own lines."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
