"""The tokenizer of a base model: opened, checked for what training needs, and keyed for the data cache."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.files import foreign_json
from loradock.files.foreign import reading
from loradock.model import adapter_files, new_tokens, shipped_code, trial
from loradock.model.files import check_readable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from loradock.model.source import BaseModel

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
"""By which a directory has a tokenizer of its own: its settings alone are those of one that lies elsewhere."""
FILES = ("*token*", "vocab.*", "merges.txt", "*.tiktoken", "chat_template*")


def open_tokenizer(
    base: BaseModel,
    *,
    directory: Path | None = None,
    vocabulary: int | None = None,
    add_tokens: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """The fast tokenizer with a pad token: that of an adapter's directory, or the base's where that has none.

    `vocabulary`: the rows of the embedding, where they are not those of the base's configuration, or of the adapter's
    own rows. `add_tokens`: texts that become a token each, see `new_tokens.add`.
    ModelError where it is slow-only, has no EOS, or exceeds the vocabulary.
    """
    from transformers import AutoTokenizer

    directory = directory_of(base, directory)
    files = [file for pattern in FILES for file in sorted(directory.glob(pattern))]
    check_readable(files)
    if (directory / "tokenizer.json").is_file():
        trial.check(directory / "tokenizer.json")
    is_trusted = base.trust_remote_code and shipped_code.is_same(directory, base.directory)
    with reading(directory, "holds a tokenizer that cannot be read", hint="copy the tokenizer's files again"):
        tokenizer: Any = AutoTokenizer.from_pretrained(directory, trust_remote_code=is_trusted, local_files_only=True)
        tokenizer.chat_template = tokenizer.chat_template or _of_processor(directory)
        ids = set(tokenizer.get_vocab().values())
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    if not tokenizer.is_fast:
        raise ModelError(
            f"{directory} has only a slow tokenizer",
            hint="convert it: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) where a conversion exists",
        )
    if not isinstance(eos, int):
        raise ModelError(
            f"the tokenizer in {directory} has no end-of-sequence token, so the model could not learn to stop",
            hint='set "eos_token" in tokenizer_config.json',
        )
    if not isinstance(pad, int):
        tokenizer.pad_token = tokenizer.eos_token
    rows: int = vocabulary or max(base.config.get_text_config().vocab_size, adapter_files.token_rows_of(directory))
    most = max(ids, default=-1) + 1
    if most > rows:
        raise ModelError(
            f"the tokenizer has {most} ids, the model {rows} embeddings",
            hint="tokenizer and model belong to different models, or tokens were added without resizing the model",
        )
    if add_tokens:
        new_tokens.add(tokenizer, add_tokens)
    return tokenizer


def directory_of(base: BaseModel, adapter: Path | None) -> Path:
    """Where the tokenizer lies: in the adapter's directory, or in the base's where that brings no vocabulary."""
    if adapter and any(file.is_file() for pattern in VOCABULARIES for file in adapter.glob(pattern)):
        return adapter
    return base.directory


def _of_processor(directory: Path) -> str | None:
    """The text in chat_template.json, where older processors keep it; None without it. ModelError where it is wrong."""
    file = directory / "chat_template.json"
    if not file.is_file():
        return None
    try:
        content = foreign_json.read(file)
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}", hint="copy the tokenizer's files again") from error
    text = content.get("chat_template") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise ModelError(f"{file} holds no text under chat_template", hint=f"rm {shlex.quote(str(file))}")
    return text
