"""What a hub of models answers, and the files that a login leaves behind."""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

from loradock.machine.machine import Machine


class Hub(Machine):
    """The hub that this machine's variables name, asked without fetching anything."""

    def hub_url(self, path: str) -> str:
        """The address of a path on the hub."""
        from huggingface_hub.constants import ENDPOINT

        return f"{ENDPOINT}/{path}"

    def hub_answer(self, url: str, *, token: str | None = None, timeout_seconds: float = 3.0) -> tuple[int | None, str]:
        """The status that one HEAD request is answered with, and the hub's word for it; (None, why) without an answer.

        It is not followed on, and the same one is made once a process.
        """
        return _answer(url, token, timeout_seconds)

    def others_may_read(self, path: str) -> bool:
        """True where any user of this machine can open the file: it is there, and it and all above it let them."""
        real = Path(path).resolve()
        try:
            is_open = bool(real.stat().st_mode & stat.S_IROTH)
            return is_open and all(parent.stat().st_mode & stat.S_IXOTH for parent in real.parents)
        except OSError:
            return False

    def room_bytes(self, path: str) -> int:
        """Bytes that this user may still write where a path lies or would come to lie."""
        while not os.path.isdir(path):
            path = os.path.dirname(path) or "/"
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


@lru_cache(maxsize=16)
def _answer(url: str, token: str | None, timeout_seconds: float) -> tuple[int | None, str]:
    import httpx

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.head(url, headers=headers, timeout=timeout_seconds)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        return None, type(error).__name__
    return reply.status_code, reply.headers.get("x-error-code", "")
