"""Where libraries keep what they download and compile, by their variables and their defaults. No check itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loradock.env_check.base import Intent
from loradock.facts import Facts
from loradock.machine import Host

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """A cache: what it is for, the folder it resolves to, the variable that moves it, and what it depends on."""

    what: str
    folder: Path
    variable: str
    is_below_home: bool
    is_for_gpus: bool = False


def home_of(host: Host) -> str | None:
    """What ~ stands for: HOME, else the home in the user database; None where both are missing."""
    return host.environ.get("HOME") or host.user_home()


def inductor_default(host: Host, plan: Intent) -> Path:
    """Where torch compiles to unless INDUCTOR says another folder; it sets the variable to this when it is imported."""
    user = host.environ.get("LOGNAME") or host.environ.get("USER") or host.user_name() or "unknown"
    return plan.scratch / f"torchinductor_{user}"


def places(host: Host, plan: Intent) -> list[CacheFolder]:
    """The caches of a run, by the rules of the libraries that keep them."""
    environ = host.environ
    home = Path(home_of(host) or "/")
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    has_cache = bool(environ.get("XDG_CACHE_HOME"))
    hub = environ.get("HF_HOME")
    triton = environ.get("TRITON_CACHE_DIR")
    return [
        CacheFolder(
            what="models from the hub",
            folder=Path(hub or cache / "huggingface"),
            variable="HF_HOME",
            is_below_home=not hub and not has_cache,
        ),
        CacheFolder(
            what="code compiled by torch",
            folder=Path(environ.get(INDUCTOR) or inductor_default(host, plan)),
            variable=INDUCTOR,
            is_below_home=False,
        ),
        CacheFolder(
            what="kernels compiled by Triton",
            folder=Path(triton or home / ".triton" / "cache"),
            variable="TRITON_CACHE_DIR",
            is_below_home=not triton,
            is_for_gpus=True,
        ),
    ]


def is_needed(place: CacheFolder, host: Host, facts: Facts, plan: Intent) -> bool:
    """True where a run cannot do without writing there.

    A shared cache of models that may only be read serves all that is in it, and a model in a folder needs none. torch
    makes its own folder when it is imported, and writes there where it compiles. Triton compiles for GPUs.
    """
    config = plan.config
    if place.variable == "HF_HOME":
        is_local = config is not None and host.exists(config.model.name)
        return not is_local and not host.exists(str(place.folder))
    if place.variable == INDUCTOR:
        return (config is not None and config.train.compile != "off") or not host.exists(f"{place.folder}/.")
    return plan.uses_gpu(facts)
