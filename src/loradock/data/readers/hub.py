"""Data sets of a hub: `hub:OWNER/NAME` at a pinned revision, read from the local copy that `datasets` keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loradock.config.schema import SourceConfig
from loradock.data.readers.arrow_rows import PIECE_ROWS, batch_records
from loradock.data.readers.base import Record
from loradock.errors import ConfigError, DataError, HubError
from loradock.machine import hub_access

PREFIX = "hub:"


def is_hub(path: str) -> bool:
    """True where `path` names a hub data set and not a file."""
    return path.startswith(PREFIX)


def identity(source: SourceConfig) -> str:
    """`OWNER/NAME@revision/split`. ConfigError where the name is malformed or no revision is pinned."""
    name = source.path.removeprefix(PREFIX)
    if name.count("/") != 1 or not all(name.split("/")):
        raise ConfigError(f"{source.path} is not a hub data set", hint="write it as hub:OWNER/NAME")
    if not source.revision:
        raise ConfigError(
            f"{source.path} has no revision: what a branch holds can change between two runs",
            hint="--set data.sources.0.revision=COMMIT (the commit is on the data set's page, under Files)",
        )
    return f"{name}@{source.revision}/{source.split}"


def records(source: SourceConfig) -> Iterator[Record]:
    """The rows of the split. HubError where the hub does not answer, refuses, or is switched off."""
    name = identity(source).partition("@")[0]
    import datasets
    import datasets.config

    elsewhere = f"fetch it elsewhere (hf download --repo-type dataset {name}) and give the files' path"
    is_offline = bool(datasets.config.HF_HUB_OFFLINE)
    prepared = Path(datasets.config.HF_DATASETS_CACHE).glob(f"{name.partition('/')[0]}___*/*/*/{source.revision}")
    is_here = any(prepared)
    if not is_offline and not is_here and (away := hub_access.away()):
        raise HubError(f"{source.path}: {away}", hint=f"{hub_access.remedy(away)}; or {elsewhere}")
    hint = "unset HF_HUB_OFFLINE" if is_offline else f"check the name, the revision and HF_TOKEN; or {elsewhere}"
    with hub_access.asking(f"{source.path} at revision {source.revision}", hint=hint):
        try:
            loaded = datasets.load_dataset(name, revision=source.revision, split=source.split)
        except ValueError as error:
            raise DataError(f"{source.path}, split {source.split}: {_first_line(error)}") from error
    tables: Any = loaded.with_format("arrow").iter(batch_size=PIECE_ROWS)  # pyright: ignore
    yield from batch_records((batch for table in tables for batch in table.to_batches()), kind="arrow")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
