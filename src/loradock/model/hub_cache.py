"""The hub's own cache on this machine, by its layout: what lies there already, and whether the hub is switched off.

Read by hand, so that a quick look imports no hub library; the rules are those of huggingface_hub and datasets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from loradock.files import regular
from loradock.machine import Host
from loradock.machine.hub_access import is_true

COMMIT = re.compile(r"[0-9a-f]{40}")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

Environ = Mapping[str, str]


def is_hub_id(name: str) -> bool:
    """True where a model's name means the hub (OWNER/NAME) and no folder of this machine, as `source.find` reads it."""
    return name.count("/") == 1 and not name.startswith((".", "~", "/")) and not Path(name).exists()


def home(environ: Environ) -> Path:
    """The folder of all that the hub's libraries keep."""
    caches = environ.get("XDG_CACHE_HOME") or _expanded("~/.cache", environ)
    return Path(_expanded(environ.get("HF_HOME") or f"{caches}/huggingface", environ))


def cache(environ: Environ) -> Path:
    """The folder of downloaded models and data sets."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(_expanded(named, environ)) if named else home(environ) / "hub"


def prepared_commits(name: str, *, environ: Environ) -> set[str]:
    """The commits at which `datasets` has prepared OWNER/NAME here; without the hub it reads nothing else."""
    folder_named = environ.get("HF_DATASETS_CACHE")
    folder = Path(_expanded(folder_named, environ)) if folder_named else home(environ) / "datasets"
    owner, _, short = name.partition("/")
    snake = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", short)).lower()
    return {
        commit_folder.name for commit_folder in (folder / f"{owner}___{snake}").glob("*/*/*") if commit_folder.is_dir()
    }


def token_file(environ: Environ) -> Path:
    """Where `hf auth login` keeps the token."""
    path = environ.get("HF_TOKEN_PATH")
    return Path(_expanded(path, environ)) if path else home(environ) / "token"


def token(host: Host) -> str | None:
    """The token that the hub's library would send: of the environment, else of the file. Never to be shown."""
    if is_true(host.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None
    variable = next((host.environ[name] for name in TOKENS if host.environ.get(name)), None)
    return (variable or host.read_text(str(token_file(host.environ))) or "").strip() or None


def commit(name: str, revision: str, *, environ: Environ, kind: str = "models") -> str | None:
    """The commit that a revision of OWNER/NAME was when it was last fetched; None where it never was."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        return regular.read_text(folder(name, environ=environ, kind=kind) / "refs" / revision).strip()
    except OSError:
        return None


def folder(name: str, *, environ: Environ, kind: str = "models") -> Path:
    """The folder of OWNER/NAME in the cache, whether or not it exists; `kind` is models or datasets."""
    return cache(environ) / f"{kind}--{name.replace('/', '--')}"


def snapshot(name: str, revision: str, *, environ: Environ, kind: str = "models") -> Path | None:
    """The folder with the files of that revision, some or all of them; None where nothing of it was fetched."""
    commit_id = commit(name, revision, environ=environ, kind=kind)
    path = folder(name, environ=environ, kind=kind) / "snapshots" / str(commit_id)
    return path if commit_id and path.is_dir() else None


def directory_of(name: str, revision: str | None, *, environ: Environ) -> Path | None:
    """The directory that a model's name means on this machine: its own, or that in the cache; None for neither."""
    if is_hub_id(name):
        return snapshot(name, revision or "main", environ=environ)
    path = Path(name)
    return path if path.is_dir() else None


def is_offline(environ: Environ) -> bool:
    """True where the hub is switched off for models: HF_HUB_OFFLINE decides, TRANSFORMERS_OFFLINE where it is unset."""
    return is_true(environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE"))


def datasets_are_offline(environ: Environ) -> bool:
    """True where the hub is switched off for data sets: HF_DATASETS_OFFLINE decides, where it is set."""
    switch = environ.get("HF_DATASETS_OFFLINE")
    return is_offline(environ) or (switch is not None and is_true(switch))


def _expanded(path: str, environ: Environ) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return re.sub(r"^~(?=/|$)", lambda _: home, os.path.expandvars(path))
