"""Takes out of a text what nobody else should read: secrets, the home folder, and the names of user and machine.

Secrets are known by value (variables whose names say so, the hub's token) and by form (tokens that begin as those of
the usual services do, credentials in addresses and headers). What is left out says what stood there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loradock.machine import Host
from loradock.model import hub_cache
from loradock.text import redact

COMMON_USERS = {"root", "user", "nobody", "loradock"}
COMMON_HOSTS = {"localhost", "localhost.localdomain"}


@dataclass(frozen=True, kw_only=True)
class Redactor:
    """Calls with a text give the text without them. `secrets` is {value: what to put in its place}."""

    secrets: Mapping[str, str]
    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        """Secrets first; then names, which may be parts of paths."""
        text = redact.without(text, self.secrets)
        for home in sorted(self.homes, key=len, reverse=True):
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        text = re.sub(r"(?<![\w.~-])/(home|Users)/[^/\s'\"`]+", r"/\1/<user>", text)
        text = _without_names(text, self.hosts, "<host>")
        return _without_names(text, self.users, "<user>")


def redactor(host: Host, *, with_names: bool = True) -> Redactor:
    """The one for this environment; `with_names`: home folder, user and machine are left out too."""
    environ = host.environ
    secrets = dict.fromkeys(redact.spellings(hub_cache.token(host) or ""), "<hub token>") | redact.of(environ)
    if not with_names:
        return Redactor(secrets=secrets)
    homes = [environ.get("HOME", ""), *([str(Path(environ["HOME"]).resolve())] if environ.get("HOME") else [])]
    users = [environ.get("USER"), environ.get("LOGNAME"), host.output_of(["id", "-un"])]
    name = (host.read_text("/proc/sys/kernel/hostname") or "").strip()
    hosts = [name, name.partition(".")[0], environ.get("HOSTNAME")]
    return Redactor(
        secrets=secrets,
        homes=tuple({home.rstrip("/") for home in homes if len(home) > 1}),
        users=_names(users, COMMON_USERS),
        hosts=_names(hosts, COMMON_HOSTS),
    )


def _names(texts: Iterable[str | None], common: set[str]) -> tuple[str, ...]:
    return tuple({name for name in texts if name and len(name) > 1 and name.lower() not in common})


def _without_names(text: str, names: tuple[str, ...], line: str) -> str:
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", line, text)
    return text
