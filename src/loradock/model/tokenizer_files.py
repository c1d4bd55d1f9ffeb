"""A tokenizer's files read by hand: largest id, end token and chat template, without a tokenizer library.

What `tokenizer.open_tokenizer` proves by opening it, as far as the files alone tell.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from loradock.files import regular
from loradock.model.files import MOST_VOCABULARY_BYTES

# Without a class the type of the model decides it, which may bring tokens of its own.
GENERIC_CLASSES = {"PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"}
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTED_TOKENS = ("additional_special_tokens", "extra_special_tokens")
TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """What the files say. `ids` is the largest id + 1 once loaded, None without tokenizer.json.

    `added` are special tokens that no vocabulary holds: each gets the next id when the tokenizer is opened. `eos` is
    None where the files name none; then a class of its own (`is_generic` is False) may still bring one.
    `named_templates`: chat templates that have a name, where none is the default.
    """

    ids: int | None
    added: tuple[str, ...]
    eos: str | None
    pad: str | None
    has_template: bool
    named_templates: tuple[str, ...]
    is_generic: bool


def read(directory: Path) -> TokenizerFiles:
    """Read what is there. Raises OSError, or ValueError (which names the file) where one is not JSON."""
    settings = {**_json(directory / "special_tokens_map.json"), **_json(directory / "tokenizer_config.json")}
    ids, added = None, ()
    vocabulary = _vocabulary(directory / "tokenizer.json")
    if vocabulary:
        known, largest = vocabulary
        listed = [*(_content(settings.get(key)) for key in NAMED_TOKENS), *_listed(settings)]
        listed += _json(directory / "added_tokens.json")
        added = tuple(dict.fromkeys(token for token in listed if token and token not in known))
        ids = largest + 1 + len(added)
    template = settings.get("chat_template")
    template_names = (
        {str(entry.get("name")) for entry in template if isinstance(entry, dict)}
        if isinstance(template, list)
        else set[str]()
    )
    template_names |= {file.stem for file in (directory / "additional_chat_templates").glob("*.jinja")}
    has_default = "default" in template_names or (bool(template) and not isinstance(template, list))
    has_template = has_default or any((directory / name).is_file() for name in TEMPLATES)
    return TokenizerFiles(
        ids=ids,
        added=added,
        eos=_content(settings.get("eos_token")),
        pad=_content(settings.get("pad_token")),
        has_template=has_template,
        named_templates=() if has_template else tuple(sorted(template_names)),
        is_generic=settings.get("tokenizer_class") in GENERIC_CLASSES,
    )


def token_of(directory: Path, token_id: int) -> str | None:
    """The text of a token by its id, or None."""
    vocabulary = _vocabulary(directory / "tokenizer.json")
    return next((text for text, number in vocabulary[0].items() if number == token_id), None) if vocabulary else None


def _listed(settings: dict[str, Any]) -> list[str | None]:
    """Special tokens that stand in a list, in a mapping of their own, or beside their ids."""
    tokens: list[Any] = list((settings.get("added_tokens_decoder") or {}).values())
    for key in LISTED_TOKENS:
        several = settings.get(key) or []
        tokens += several.values() if isinstance(several, dict) else several
    return [_content(token) for token in tokens]


def _content(token: Any) -> str | None:
    """A token stands as its text, or as an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _vocabulary(file: Path) -> tuple[dict[str, int], int] | None:
    if not file.is_file():
        return None
    stat = file.stat()
    return _parsed(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)
def _parsed(file: Path, _changed: int, _size_bytes: int) -> tuple[dict[str, int], int]:
    """{token: id} and the largest id of a tokenizer.json: megabytes, which two checks ask for."""
    content = _json(file)
    try:
        entries = content["model"]["vocab"]
        pairs = entries.items() if isinstance(entries, dict) else ((pair[0], i) for i, pair in enumerate(entries))
        known = {**dict(pairs), **{token["content"]: token["id"] for token in content.get("added_tokens") or []}}
        return known, max(known.values(), default=-1)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file} is not a tokenizer file") from error


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(regular.read_text(file, most_bytes=MOST_VOCABULARY_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object")
    return content
