"""Data sets of a hub: `hub:OWNER/NAME` at a pinned revision, read from the local copy that `datasets` keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loradock.config.sections.data import SourceConfig
from loradock.data.readers.arrow_rows import PIECE_ROWS, batch_records
from loradock.data.readers.base import Record
from loradock.errors import ConfigError, DataError, HubError
from loradock.machine import hub_access

PREFIX = "hub:"
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that switch the hub off for data sets."""


def is_hub(path: str) -> bool:
    """True where `path` names a hub data set and not a file."""
    return path.startswith(PREFIX)


def identity(source: SourceConfig) -> str:
    """`OWNER/NAME@revision/split`. ConfigError where no revision is pinned, which only `data.sources` can."""
    name = source.path.removeprefix(PREFIX)
    if not source.revision:
        raise ConfigError(f"{source.path}: only data.sources takes a data set of a hub", hint=fetching(name))
    return f"{name}@{source.revision}/{source.split}"


def fetching(name: str) -> str:
    """The command that makes files of a hub data set, which are named in its place."""
    return f"hf download {name} --repo-type dataset --local-dir {name.rpartition('/')[2]}, and name a file of it"


def records(source: SourceConfig) -> Iterator[Record]:
    """The rows of the split. HubError where the hub does not answer, refuses, or is switched off."""
    name = identity(source).partition("@")[0]
    import datasets
    import datasets.config

    elsewhere = f"fetch it elsewhere: {fetching(name)}"
    is_offline = bool(datasets.config.HF_HUB_OFFLINE)
    prepared = Path(datasets.config.HF_DATASETS_CACHE).glob(f"{name.partition('/')[0]}___*/*/*/{source.revision}")
    is_here = any(prepared)
    if not is_offline and not is_here and (away := hub_access.away()):
        raise HubError(f"{source.path}: {away}", hint=f"{hub_access.remedy(away)}; or {elsewhere}")
    hint = f"unset {' '.join(OFFLINE)}" if is_offline else f"check the name, the revision and HF_TOKEN; or {elsewhere}"
    with hub_access.asking(f"{source.path} at revision {source.revision}", hint=hint):
        try:
            loaded = datasets.load_dataset(name, revision=source.revision, split=source.split)
        except ValueError as error:
            raise DataError(f"{source.path}, split {source.split}: {_first_line(error)}") from error
    tables: Any = loaded.with_format("arrow").iter(batch_size=PIECE_ROWS)  # pyright: ignore
    yield from batch_records((batch for table in tables for batch in table.to_batches()), kind="arrow")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
