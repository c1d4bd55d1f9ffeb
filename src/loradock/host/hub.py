"""What a hub of models answers, and the files that a login leaves behind."""

from __future__ import annotations

import os
import stat
from functools import lru_cache

from loradock.host.machine import Machine


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

    def file_mode(self, path: str) -> int | None:
        """The permission bits of a file, as chmod takes them; None where it does not exist or may not be seen."""
        try:
            return stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            return None

    def room_bytes(self, path: str) -> int:
        """Bytes that this user may still write where a path lies or would come to lie."""
        while not os.path.isdir(path):
            path = os.path.dirname(path) or "/"
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


@lru_cache(maxsize=16)
def _answer(url: str, token: str | None, timeout_seconds: float) -> tuple[int | None, str]:
    import httpx

    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.head(url, headers=headers, timeout=timeout_seconds)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        return None, type(error).__name__
    return reply.status_code, reply.headers.get("x-error-code", "")
