"""Data sets of a hub: `hub:OWNER/NAME` at a pinned revision, read from the local copy that `datasets` keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loradock.config.sections.data import HUB_PREFIX, SourceConfig
from loradock.data.readers.arrow_rows import PIECE_ROWS, batch_records
from loradock.data.readers.base import Record
from loradock.errors import ConfigError, DataError, HubError
from loradock.machine import hub_access

PREFIX = HUB_PREFIX
LIST = re.compile(r"\[.*\]")
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that switch the hub off for data sets."""


def is_hub(path: str) -> bool:
    """True where `path` names a hub data set and not a file."""
    return path.startswith(PREFIX)


def identity(source: SourceConfig) -> str:
    """`OWNER/NAME@revision/split`, or `OWNER/NAME@revision/configuration/split`. ConfigError without a revision."""
    name = source.path.removeprefix(PREFIX)
    if not source.revision:
        hint = f"write {source.path}@COMMIT#SPLIT; or {fetching(name)}"
        raise ConfigError(f"{source.path}: a data set of a hub needs a commit", hint=hint)
    return "/".join(part for part in (f"{name}@{source.revision}", source.configuration, source.split) if part)


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
            loaded = datasets.load_dataset(
                name, source.configuration, revision=source.revision, split=source.split or None
            )
        except ValueError as error:
            raise _refused(source, error) from error
    if isinstance(loaded, dict):  # no split was asked for
        if len(loaded) > 1:
            names = [str(name) for name in loaded]
            raise DataError(f"{source.path} holds several splits: {', '.join(names)}", hint=naming(source, names))
        (loaded,) = loaded.values()
    tables: Any = loaded.with_format("arrow").iter(batch_size=PIECE_ROWS)  # pyright: ignore
    yield from batch_records((batch for table in tables for batch in table.to_batches()), kind="arrow")


def naming(source: SourceConfig, names: Sequence[str]) -> str:
    """How the first of the splits is asked for."""
    inside = f"{source.configuration}/" if source.configuration else ""
    return f"write {source.path}@{source.revision}#{inside}{names[0]}"


def _refused(source: SourceConfig, error: ValueError) -> DataError:
    """What the library says of a split or configuration that is not there, with the list of those that are."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentence = next((f"{lines[0]} {line}" for line in lines[1:] if LIST.search(line)), lines[0])
    part = f"{source.configuration}/{source.split}" if source.configuration else source.split
    return DataError(
        f"{source.path}#{part}: {sentence}", hint=f"write {source.path}@{source.revision}#CONFIGURATION/SPLIT"
    )
