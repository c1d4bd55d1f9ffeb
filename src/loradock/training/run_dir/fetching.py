"""What a record names of a hub is taken from this machine, and never fetched: a person names what is to be fetched."""

from __future__ import annotations

import os
from collections.abc import Iterable

from loradock.config.places import is_remote
from loradock.config.sections.data import SourceConfig
from loradock.config.sections.model import ModelConfig
from loradock.data.read import is_here
from loradock.data.readers import hub
from loradock.errors import InputMissing
from loradock.model import hub_cache

WHY = "is not on this machine, and nothing is fetched because a record names it"


def refuse_model(recorded: ModelConfig) -> None:
    """InputMissing where the base is named by a hub id, and not in the hub's cache."""
    name, revision = recorded.name, recorded.revision
    if hub_cache.is_hub_id(name) and not hub_cache.directory_of(name, revision, environ=os.environ):
        hint = f"hf download {name} --revision {revision or 'main'}, or --model DIR"
        raise InputMissing(f"the base {name} {WHY}", hint=hint)


def refuse_data(recorded: Iterable[SourceConfig]) -> None:
    """InputMissing where a source is a data set of the hub, or a file of the network, that was not fetched here."""
    for source in recorded:
        if is_remote(source.path) and not is_here(source):
            raise InputMissing(f"{source.path} {WHY}", hint=f"--data {source.path}")
        name = source.path.removeprefix(hub.PREFIX)
        if hub.is_hub(source.path) and source.revision not in hub_cache.prepared_commits(name, environ=os.environ):
            part = f", '{source.configuration}'" if source.configuration else ""
            load = f"python -c \"import datasets; datasets.load_dataset('{name}'{part}, revision='{source.revision}')\""
            raise InputMissing(f"the data set {name} {WHY}", hint=load)
