"""What Kubernetes takes as a name, a label, a quantity, an image; each check returns why a text is refused, or None.

Sources: the API reference (object names, labels and selectors, resource quantities) and RFC 1123 and 1035.
"""

from __future__ import annotations

import re

LONGEST_NAME = 40
"""Of a workload: the pods of a JobSet add `-node-0-NNN`, a ConfigMap `-config-` and ten digits, to 63 at most."""
LABEL_CHARACTERS, NAME_CHARACTERS = 63, 253
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
FROM_LETTER = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
SUBDOMAIN = re.compile(rf"{LABEL.pattern}(\.{LABEL.pattern})*")
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
IMAGE = re.compile(r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?", re.ASCII)
DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{32,}")
PATH = re.compile(r"/[^\x00-\x1f\x7f:]*")
PRINTABLE = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]*")
SCRATCH_NAME = "run"


def safe_name(text: str) -> str:
    """A text as the name of a workload: lower case, digits and dashes, a letter first, LONGEST_NAME at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"{SCRATCH_NAME}-{plain}".strip("-")
    return plain[:LONGEST_NAME].rstrip("-")


def workload_name(text: str) -> str | None:
    """The name of the workload, which names services and hosts too (RFC 1035)."""
    if len(text) <= LONGEST_NAME and FROM_LETTER.fullmatch(text):
        return None
    return f"a letter, then small letters, digits and dashes, {LONGEST_NAME} characters at most"


def label_name(text: str) -> str | None:
    """A name that is one label of a host name, as a namespace's."""
    is_good = len(text) <= LABEL_CHARACTERS and LABEL.fullmatch(text)
    return None if is_good else f"small letters, digits and dashes, {LABEL_CHARACTERS} characters at most"


def object_name(text: str) -> str | None:
    """The name of an object: labels with dots between them."""
    is_short = len(text) <= NAME_CHARACTERS and all(len(part) <= LABEL_CHARACTERS for part in text.split("."))
    is_good = is_short and SUBDOMAIN.fullmatch(text)
    return None if is_good else f"small letters, digits, dashes and dots, {NAME_CHARACTERS} characters at most"


def label_key(text: str) -> str | None:
    """The key of a label, an annotation or a taint: a name, with a DNS name and a slash before it or not."""
    prefix, slash, name = text.rpartition("/")
    is_prefix = not slash or object_name(prefix) is None
    if is_prefix and filled_value(name) is None:
        return None
    return f"letters, digits, `-`, `_` and `.`, {LABEL_CHARACTERS} at most, with `a.dns.name/` before them or not"


def label_value(text: str) -> str | None:
    """The value of a label."""
    is_good = len(text) <= LABEL_CHARACTERS and VALUE.fullmatch(text)
    return None if is_good else f"letters, digits, `-`, `_` and `.`, {LABEL_CHARACTERS} at most"


def filled_value(text: str) -> str | None:
    """The value of a label that has to say something."""
    return label_value(text) if text else "a name, not an empty text"


def variable(text: str) -> str | None:
    """The name of an environment variable."""
    return None if VARIABLE.fullmatch(text) else "letters, digits and `_`, no digit first"


def secret_key(text: str) -> str | None:
    """The key of a Secret."""
    return None if SECRET_KEY.fullmatch(text) else "letters, digits, `-`, `_` and `.`, 253 at most"


def image(text: str) -> str | None:
    """The reference of an image."""
    name, at, digest = text.partition("@")
    is_good = IMAGE.fullmatch(name) and (not at or DIGEST.fullmatch(digest))
    return None if is_good else "REPOSITORY@sha256:DIGEST, or REPOSITORY:TAG"


def is_by_digest(text: str) -> bool:
    """True where an image's reference can only mean one image."""
    return image(text) is None and "@" in text


def path(text: str) -> str | None:
    """An absolute path of a node, which does not climb."""
    is_good = PATH.fullmatch(text) and ".." not in text.split("/") and text.strip("/")
    return None if is_good else "an absolute path without `..` and colons, and not `/`"


def printable(text: str) -> str | None:
    """Any text that YAML holds and a process can be given."""
    is_good = PRINTABLE.fullmatch(text) and not any(0xD800 <= ord(char) < 0xE000 for char in text)
    return None if is_good else "text without control characters"
