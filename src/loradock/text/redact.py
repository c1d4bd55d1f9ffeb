"""What tells a secret: the name of a variable, and the forms that the usual services give their tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import quote

SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
PLACES = ("_FILE", "_PATH", "_DIR")
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


def without(text: str, secrets: Mapping[str, str]) -> str:
    """The text without `secrets` ({value: what to put in its place}), and without what has the form of one."""
    for value in sorted(secrets, key=len, reverse=True):  # the longest before what it holds
        text = text.replace(value, secrets[value])
    text = ADDRESS.sub(r"\1<credentials>@", text)
    for form, encode in FORMS:
        text = re.sub(form, encode, text)
    return text


def of(environ: Mapping[str, str]) -> dict[str, str]:
    """{value: `<NAME>`} for each variable whose name says that it is secret, in every spelling."""
    secrets = {name: environ[name] for name in environ if is_secret(name)}
    return {spelling: f"<{name}>" for name, value in secrets.items() for spelling in spellings(value)}


@cache  # asked of every variable for every line that is printed
def is_secret(name: str) -> bool:
    """True where a variable's name says that its value is for nobody else, and not where such a value lies."""
    return SECRET_NAME.search(name) is not None and not name.upper().endswith(PLACES)


def spellings(value: str) -> Iterable[str]:
    """The value, its lines, and both as they stand in an address, in JSON and in Python.

    What is too short or too plain to hide is left out.
    """
    for part in {value, value.strip(), *value.splitlines()}:
        if len(part) >= SHORTEST_SECRET and part.lower() not in PLAIN_WORDS and not part.isdecimal():
            yield from (part, quote(part, safe=""), json.dumps(part)[1:-1], repr(part)[1:-1])
