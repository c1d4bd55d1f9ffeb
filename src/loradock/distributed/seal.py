"""What a process says of itself is signed with a secret of the launch: a stranger who reaches the store ends no run.

HMAC-SHA256 (RFC 2104) over the start of the run, who speaks, and what. `loradock launch` on one node draws a secret;
over several nodes it is given to each launcher. Without one, reports are taken as they come.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loradock.errors import UsageError
from loradock.files import regular

SECRET, SECRET_FILE = "LORADOCK_RUN_SECRET", "LORADOCK_RUN_SECRET_FILE"
SHORTEST_BYTES = 16
SIGNATURE_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class Seal:
    """Signs and verifies. `key`: the secret; empty: nothing is signed. `start`: sets one start of the run apart."""

    key: bytes = b""
    start: str = ""

    def close(self, speaker: str, content: bytes) -> bytes:
        """The content with its signature before it."""
        return self._signature(speaker, content) + content if self.key else content

    def open(self, speaker: str, sealed: bytes) -> bytes | None:
        """The content; None where it is not signed by that speaker with this secret."""
        if not self.key:
            return sealed
        signature, content = sealed[:SIGNATURE_BYTES], sealed[SIGNATURE_BYTES:]
        return content if hmac.compare_digest(signature, self._signature(speaker, content)) else None

    def _signature(self, speaker: str, content: bytes) -> bytes:
        about = f"{self.start}\n{speaker}\n".encode()
        return hmac.digest(self.key, about + content, "sha256")


def secret_in(environ: Mapping[str, str]) -> bytes:
    """The secret of the run, from the environment or from the file that it names; empty where there is none.

    Raises UsageError where the file cannot be read, or the secret is so short that it can be guessed.
    """
    secret, origin = environ.get(SECRET, ""), SECRET
    if not secret and (file := environ.get(SECRET_FILE)):
        origin = f"{SECRET_FILE}={file}"
        try:
            secret = regular.read_text(Path(file)).strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"{origin} cannot be read: {error}", hint=f"openssl rand -hex 32 > {file}") from error
    elif not secret:
        return b""
    if len(secret.encode()) < SHORTEST_BYTES:
        what = f"{origin} is shorter than {SHORTEST_BYTES} bytes: it could be guessed"
        raise UsageError(what, hint="openssl rand -hex 32 makes one; every node takes the same")
    return secret.encode()


def drawn() -> str:
    """A secret that nobody had before."""
    return secrets.token_hex(32)
