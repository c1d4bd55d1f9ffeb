"""The tokenizer of a base model: opened, checked for what training needs, and keyed for the data cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loradock.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from loradock.model.source import BaseModel


def open_tokenizer(
    base: BaseModel, *, directory: Path | None = None, vocabulary: int | None = None
) -> PreTrainedTokenizerFast:
    """The fast tokenizer with a pad token, the base's own or that of an adapter's directory.

    `vocabulary`: the rows of the embedding, where they are not those of the base's configuration.
    ModelError where it is slow-only, has no EOS, or exceeds the vocabulary.
    """
    from transformers import AutoTokenizer

    directory = directory or base.directory
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=base.trust_remote_code, local_files_only=True
        )
    except Exception as error:  # tokenizers raises bare Exception for a broken file
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the tokenizer in {directory} cannot be read: {first}", hint="copy tokenizer.json again"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"{directory} has only a slow tokenizer",
            hint="convert it: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) where a conversion exists",
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer in {directory} has no end-of-sequence token, so the model could not learn to stop",
            hint='set "eos_token" in tokenizer_config.json',
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    vocabulary = vocabulary or base.config.get_text_config().vocab_size
    if max(tokenizer.get_vocab().values()) >= vocabulary:
        raise ModelError(
            f"the tokenizer has {max(tokenizer.get_vocab().values()) + 1} ids, the model {vocabulary} embeddings",
            hint="tokenizer and model belong to different models, or tokens were added without resizing the model",
        )
    return tokenizer
