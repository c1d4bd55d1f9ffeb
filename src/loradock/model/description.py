"""A base model without its weights: config and tokenizer, for what only plans or tokenises."""

from __future__ import annotations

import os
from pathlib import Path

from loradock.config.schema import ModelConfig
from loradock.errors import HubError, ModelError
from loradock.model import hub_cache, source, weights
from loradock.model.source import BaseModel

SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]


def describe(asked: ModelConfig) -> BaseModel:
    """The model that the configuration names, of which only config.json has to be there, checked as `source.find` does.

    Of a hub model that is not in the cache the small files are fetched. Raises InputMissing, HubError and ModelError.
    """
    trusted = asked.trust_remote_code == asked.name
    directory = _directory(asked)
    config = source.read_config(directory, trusted=trusted)
    source.check_architecture(config, directory=directory)
    return BaseModel(
        name=asked.name,
        directory=directory,
        revision=asked.revision,
        config=config,
        trust_remote_code=trusted,
        weight_files=weights.files(directory),
    )


def _directory(asked: ModelConfig) -> Path:
    """Where config.json lies: a local directory, or the hub's cache, to which the small files are fetched."""
    if not hub_cache.is_hub_id(asked.name):
        directory = source.local_directory(Path(asked.name).expanduser())
    elif found := hub_cache.directory_of(asked.name, asked.revision, environ=os.environ):
        directory = found
    else:
        directory = _fetched(asked)
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json", hint="give the model's directory with --model")
    return directory


def _fetched(asked: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(asked.name, revision=asked.revision, allow_patterns=SMALL_FILES))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise HubError(
            f"the hub did not give {asked.name}: {first}", hint="give a local directory with --model"
        ) from error
