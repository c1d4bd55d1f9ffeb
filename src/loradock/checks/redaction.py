"""Takes out of a text what nobody else should read: secrets, the home folder, and the names of user and machine.

Secrets are known by value (variables whose names say so, the hub's token) and by form (tokens that begin as those of
the usual services do, credentials in addresses and headers). What is left out says what stood there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from loradock.host import Host
from loradock.model import hub_cache

SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
SHORTEST_SECRET = 4
PLAIN_WORDS = {"true", "false", "none", "null", "auto", "default"}
FORMS = (
    (r"hf_[A-Za-z0-9]{6,}|api_org_[A-Za-z0-9]{6,}", "<hub token>"),
    (r"\bsk-[A-Za-z0-9_-]{6,}", "<api key>"),
    (r"\bgh[pousr]_[A-Za-z0-9]{6,}|\bgithub_pat_\w{6,}|\bglpat-[\w-]{6,}", "<git token>"),
    (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}", "<access key>"),
    (r"\bxox[abeprs]-[\w-]{6,}", "<chat token>"),
    (r"\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?", "<signed token>"),
    (r"(?i)\b(authorization\W+\w+|bearer)\s+[\w.~+/=-]{6,}", r"\1 <credentials>"),
    (r"(?i)([?&;][\w-]*(?:token|secret|key|password|passwd|signature|sig)[\w-]*=)[^\s&;#'\"`]+", r"\1<secret>"),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", "<private key>"),
)
# One slash is what a path makes of two; a password may hold an @, and (unless it looks like a port) a slash.
ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*:/{1,2})(?:[^\s/:'\"`]+:(?!\d+/)[^\s'\"`]+|[^\s/'\"`]+)@", re.IGNORECASE)
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
        """Secrets first, the longest before what it holds; then names, which may be parts of paths."""
        for value in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(value, self.secrets[value])
        text = ADDRESS.sub(r"\1<credentials>@", text)
        for form, shown in FORMS:
            text = re.sub(form, shown, text)
        for home in sorted(self.homes, key=len, reverse=True):
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        text = re.sub(r"(?<![\w.~-])/(home|Users)/[^/\s'\"`]+", r"/\1/<user>", text)
        text = _without_names(text, self.hosts, "<host>")
        return _without_names(text, self.users, "<user>")


def redactor(host: Host, *, with_names: bool = True) -> Redactor:
    """The one for this environment; `with_names`: home folder, user and machine are left out too."""
    environ = host.environ
    secrets = {}
    for name, value in environ.items():
        if is_secret(name):
            secrets |= dict.fromkeys(_spellings(value), f"<{name}>")
    secrets |= dict.fromkeys(_spellings(hub_cache.token(host) or ""), "<hub token>") | secrets
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


def is_secret(name: str) -> bool:
    """True where a variable's name says that its value is for nobody else."""
    return SECRET_NAME.search(name) is not None


def _spellings(value: str) -> Iterable[str]:
    """The value, its lines, and both as they stand in an address, in JSON and in Python.

    What is too short or too plain to hide is left out.
    """
    for part in {value, value.strip(), *value.splitlines()}:
        if len(part) >= SHORTEST_SECRET and part.lower() not in PLAIN_WORDS and not part.isdecimal():
            yield from (part, quote(part, safe=""), json.dumps(part)[1:-1], repr(part)[1:-1])


def _names(found: Iterable[str | None], common: set[str]) -> tuple[str, ...]:
    return tuple({name for name in found if name and len(name) > 1 and name.lower() not in common})


def _without_names(text: str, names: tuple[str, ...], shown: str) -> str:
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", shown, text)
    return text
