"""A tokenizer beside an adapter or a merged model: the base's own files, with the chat template that was trained.

Saving it by transformers would write it anew in the form of the newest release, which servers that pin an older one do
not open; training changes nothing but the template.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loradock.files import foreign_json, regular
from loradock.model.files import MOST_VOCABULARY_BYTES

PATTERNS = (
    "tokenizer*", "*.model", "*.tiktoken", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "chat_template*",
)  # fmt: skip
SETTINGS, TEMPLATE, NAMED = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
OF_PROCESSOR = "chat_template.json"
VOCABULARY = "tokenizer.json"
ADDED = "added_tokens.json"
OF_ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
"""What the files say of a token that was added as a text of its own: read as it stands, wherever it stands."""
OF_TRANSFORMERS_5 = ("backend", "is_local", "local_files_only")
OF_A_CALL = ("truncation", "padding")
"""Fields of tokenizer.json that follow what a program asked last."""


def files_of(folder: Path) -> list[Path]:
    """The files of a tokenizer that lie in a folder, sorted."""
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()})


def copy_tokenizer(source: Path, folder: Path, *, tokenizer: Any = None) -> None:
    """Copy the files as they are; settings in the words of transformers 5 alone are put into words that 4 has, too.

    `tokenizer`: the opened one, which writes tokenizer.json where there is none.
    """
    for file in files_of(source):
        shutil.copyfile(file, folder / file.name)
    if (source / NAMED).is_dir():
        shutil.copytree(source / NAMED, folder / NAMED)
    if tokenizer is not None and not (folder / VOCABULARY).is_file():
        tokenizer.backend_tokenizer.save(str(folder / VOCABULARY))
    settings = _settings(folder)
    if (settings_both_read := as_both_read(settings)) != settings:
        write_settings(folder, settings_both_read)


def put_template(folder: Path, template: str) -> None:
    """Make a text the one chat template of the tokenizer in a folder; nothing is written where it is that already.

    It stands where the folder has its own: as a file, or in tokenizer_config.json.
    """
    if template_of(folder) == template:
        return
    settings = _settings(folder)
    has_file = (folder / TEMPLATE).is_file() or "chat_template" not in settings
    (folder / TEMPLATE).unlink(missing_ok=True)
    (folder / OF_PROCESSOR).unlink(missing_ok=True)
    shutil.rmtree(folder / NAMED, ignore_errors=True)
    settings_kept = {key: value for key, value in settings.items() if key != "chat_template"}
    if has_file:
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    else:
        settings_kept["chat_template"] = template
    if settings_kept != settings:
        write_settings(folder, settings_kept)


def put_tokens(folder: Path, ids: Mapping[str, int]) -> None:
    """Add tokens to the tokenizer in a folder ({text: id}), in each file that lists them; none, none is written."""
    vocabulary = folder / VOCABULARY
    if not ids:
        return
    content = foreign_json.read(vocabulary, most_bytes=MOST_VOCABULARY_BYTES)
    listed = content.get("added_tokens") or []
    known = {entry["id"] for entry in listed}
    content["added_tokens"] = listed + [
        {"id": number, "content": token, **OF_ADDED} for token, number in ids.items() if number not in known
    ]
    vocabulary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    settings = _settings(folder)
    if decoder := settings.get("added_tokens_decoder"):
        new = {str(number): {"content": token, **OF_ADDED} for token, number in ids.items()}
        write_settings(folder, {**settings, "added_tokens_decoder": {**decoder, **new}})
    if (of_slow := folder / ADDED).is_file():
        of_slow.write_text(json.dumps({**foreign_json.read(of_slow), **ids}, ensure_ascii=False), encoding="utf-8")


def template_of(folder: Path) -> str | None:
    """The chat template of a tokenizer's files, of named ones the default; None where they have none."""
    if (folder / TEMPLATE).is_file():
        return regular.read_text(folder / TEMPLATE)
    template = _settings(folder).get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def is_unchanged(base: Path, copy: Path) -> bool:
    """Whether two tokenizers are one: the same tokenizer.json but for its layout, and what a call left in it."""
    files = [folder / VOCABULARY for folder in (base, copy)]
    if not all(file.is_file() for file in files):
        return False
    first, second = (foreign_json.read(file, most_bytes=MOST_VOCABULARY_BYTES) for file in files)
    return {**first, **dict.fromkeys(OF_A_CALL)} == {**second, **dict.fromkeys(OF_A_CALL)}


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write tokenizer_config.json."""
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def as_both_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json as transformers 5 writes it, in words that transformers 4 has, too; 5 reads these alike.

    4 has no class TokenizersBackend, and takes extra_special_tokens for names with a token each.
    """
    settings_read = {key: value for key, value in settings.items() if key not in OF_TRANSFORMERS_5}
    if isinstance(settings_read.get("extra_special_tokens"), list):
        settings_read["additional_special_tokens"] = settings_read.pop("extra_special_tokens")
    if settings_read.get("tokenizer_class") == "TokenizersBackend":
        settings_read["tokenizer_class"] = "PreTrainedTokenizerFast"
    return settings_read


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS
    return foreign_json.read(file) if file.is_file() else {}
