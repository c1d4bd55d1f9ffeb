"""What a run means to do, from its configuration: the `plan` that checks look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loradock.env_check.base import Intent
from loradock.errors import InputMissing
from loradock.machine import Host
from loradock.model import attention_shape
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from loradock.config.schema import RunConfig

CACHE = "LORADOCK_CACHE"


def intent(host: Host, config: RunConfig | None = None) -> Intent:
    """Folders and shapes of the run that follows; of a run with every default where `config` is None."""
    environ = host.environ
    folder = _working_directory()
    cache = own_cache(host)
    output = "runs"
    shape, has_experts = None, False
    if config is not None:
        cache = config.data.cache or cache
        output = config.output or output
        shape = attention_shape.of_model(config.model.name, config.model.revision, environ=environ)
        has_experts = attention_shape.has_experts(config.model.name, config.model.revision, environ=environ)
    return Intent(
        config=config,
        output=folder / output,
        cache=folder / cache,
        scratch=_scratch(host),
        attention=shape or AttentionShape(),
        has_experts=has_experts,
    )


def own_cache(host: Host) -> str:
    """The cache of this machine, wherever a run's own lies."""
    home = Path(host.environ.get("HOME", "/"))
    return host.environ.get(CACHE) or str(Path(host.environ.get("XDG_CACHE_HOME") or home / ".cache", "loradock"))


def cache_of_machine(host: Host) -> Path:
    """The folder of that cache."""
    return _working_directory() / own_cache(host)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise InputMissing("the working directory was removed", hint="cd ~") from error


def _scratch(host: Host) -> Path:
    """The folder that Python puts temporary files into; the first that was named where none takes any."""
    folders = host.scratch_folders()
    return next((folder for folder in folders if host.takes_files(folder)), folders[0])
