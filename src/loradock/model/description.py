"""A base model without its weights: config and tokenizer, for what only plans or tokenises."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError, Problem
from loradock.files.foreign import unreadable
from loradock.model import headers, hub_cache, rope_scaling, source, weights
from loradock.model.source import BaseModel

SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]

WIDTHS = ("hidden_size", "word_embed_proj_dim", "embedding_size")
"""What a text model's embeddings may be as wide as."""


def describe(model_config: ModelConfig) -> BaseModel:
    """The model that the configuration names, of which only config.json has to be there, checked as `source.find` does.

    Of a hub model that is not in the cache the small files are fetched. Raises InputMissing, HubError and ModelError.
    """
    base = _described(model_config, directory_of(model_config))
    source.check_architecture(base.config, directory=base.directory)
    return base


def describe_for_rows(model_config: ModelConfig) -> BaseModel:
    """The same of a model of any kind, for its tokenizer and its positions alone: transformers does without torch.

    Not where it ships code that is trusted, which may need torch.
    """
    directory = directory_of(model_config)
    if not model_config.trust_remote_code:
        without_torch()
    return _described(model_config, directory)


def without_torch() -> None:
    """transformers of this process takes torch for absent; nothing where it is imported already.

    Its configs and tokenizers import torch, its compiler and what distributes tensors where they are installed, and
    use none of them: 0.9 s of CPU in the place of 2.7 s for both (transformers 5, 2 cores).
    """
    if "transformers" in sys.modules:
        return
    import transformers
    from transformers import utils
    from transformers.utils import import_utils

    for module in (transformers, utils, import_utils):
        vars(module)["is_torch_available"] = lambda: False


def directory_of(model_config: ModelConfig) -> Path:
    """Where config.json lies: a local directory, or the hub's cache, to which the small files are fetched."""
    if not hub_cache.is_hub_id(model_config.name):
        directory = source.local_directory(Path(model_config.name))
    elif found := hub_cache.directory_of(model_config.name, model_config.revision, environ=os.environ):
        directory = found
    else:
        directory = source.downloaded(model_config, allow_patterns=SMALL_FILES)
    source.check_regular(directory)
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json", hint="give the model's directory with --model")
    return directory


def _described(model_config: ModelConfig, directory: Path) -> BaseModel:
    trusted = model_config.trust_remote_code == model_config.name
    config = source.read_config(directory, name=model_config.name, trusted=trusted)
    scaling = rope_scaling.applied(config, model_config, trusted=trusted)
    base = BaseModel(
        name=model_config.name,
        directory=directory,
        revision=model_config.revision,
        config=config,
        trust_remote_code=trusted,
        weight_files=weights.files(directory),
        scaling=scaling,
    )
    check_sizes(base)
    return base


def check_sizes(base: BaseModel) -> None:
    """Refuse a config.json that asks for another vocabulary or for more layers than the weights hold, if they are here.

    Whether each tensor is there, and in its shape, is what `whole.check` looks at before a training.
    """
    missing: list[Problem] = []
    files = weights.resolve(base.directory, missing)
    if missing:
        return
    try:
        tensor_shapes = headers.shapes(files)
    except OSError as error:
        raise unreadable(error, error.filename or base.directory) from error
    text = base.config.get_text_config()
    embedding, sizes = headers.embedding(tensor_shapes), headers.layers(tensor_shapes)
    rows, width = embedding if embedding and len(embedding) == 2 else (0, 0)
    vocabulary, layers = getattr(text, "vocab_size", None), getattr(text, "num_hidden_layers", None)
    widths = {key: stated_size for key in WIDTHS if isinstance(stated_size := getattr(text, key, None), int)}
    wrong: list[str] = []
    if rows and isinstance(vocabulary, int) and rows != vocabulary:
        wrong.append(f"vocab_size is {vocabulary:,}, and the weights hold {rows:,} embeddings")
    if width and widths and width not in widths.values():
        stated = " and ".join(f"{key} is {width:,}" for key, width in widths.items())
        wrong.append(f"{stated}, and the weights' embeddings are {width:,} wide")
    if sizes and isinstance(layers, int) and sizes < layers:
        wrong.append(f"num_hidden_layers is {layers:,}, and the weights hold {sizes:,} layers")
    if wrong:
        file = str(base.directory / "config.json")
        raise ModelError(
            "config.json and the weights do not belong together",
            hint="copy the whole directory again",
            problems=[Problem(what=what, file=file) for what in wrong],
        )
