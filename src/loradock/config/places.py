"""Paths as they are typed: `~` and variables of the environment, by one rule for every path key and path option."""

from __future__ import annotations

import os
import re
from pathlib import Path

from loradock.errors import UsageError
from loradock.text import redact

VARIABLE = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^}]*)\}|\((?P<round>[^)]*)\))", re.ASCII)
REMOTE = ("https://", "http://", "s3://", "gs://")
NO_CREDENTIAL = "log in by ~/.netrc (https) or as the store's own tools do (s3, gs); or fetch the file, and name it"
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def expanded(path: str) -> str:
    """The path with `~`, `~user`, `$NAME` and `${NAME}` replaced, as a shell does it outside of quotes.

    Never a path that was not meant: UsageError for a variable that is unset or empty (`$SCRATCH/x` would be `/x`), for
    one whose name says that it is secret (paths are shown and recorded), and for other forms (`${NAME:-x}`, `$(NAME)`).
    """
    if path.startswith("~"):
        try:
            path = str(Path(path).expanduser())
        except RuntimeError as error:
            who = path.partition("/")[0]
            raise UsageError(f"{path}: there is no home directory {who}", hint="write the whole path") from error
    return VARIABLE.sub(lambda found: _value(found, path), path)


def _value(found: re.Match[str], path: str) -> str:
    name = found["name"] or found["braced"] or ""
    if not NAME.fullmatch(name):
        raise UsageError(f"{path}: {found[0]} is not expanded", hint="write $NAME or ${NAME}, or the whole path")
    if redact.is_secret(name):
        raise UsageError(f"{path}: {name} is a secret, and a path is shown and recorded", hint="write the whole path")
    value = os.environ.get(name)
    if not value:
        state = "not set" if value is None else "empty"
        raise UsageError(f"{path}: the variable {name} is {state}", hint=f"export {name}=DIR, or write the whole path")
    return value


def cache_directory(directory: str | None) -> Path:
    """Where prepared data and fetched files are kept: data.cache, else LORADOCK_CACHE, else the user's cache."""
    if directory:
        return Path(directory)
    if cache := os.environ.get("LORADOCK_CACHE"):
        return Path(cache) / "prepared"
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "loradock" / "prepared"


def is_remote(path: str) -> bool:
    """Whether a path is an address of the web or of an object store."""
    return path.startswith(REMOTE)


def written(path: Path) -> str:
    """A path as it is typed: of an address it holds one slash less."""
    scheme, _, rest = str(path).partition(":/")
    return f"{scheme}://{rest}" if f"{scheme}://" in REMOTE and rest else str(path)


def has_credential(path: str) -> bool:
    """Whether a remote path holds what nobody else may see, as a signed address does: it would be recorded."""
    return is_remote(path) and redact.without(path, {}) != path
