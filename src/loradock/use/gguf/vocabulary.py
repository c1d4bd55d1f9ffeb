"""The vocabulary of a tokenizer.json as GGUF holds it: a text and a type for every row of the embedding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.errors import ModelError
from loradock.model.files import MOST_VOCABULARY_BYTES, json_object
from loradock.use.gguf import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""GGUF's token types."""
NEVER_MERGED = -1e9
LOOKS_SPECIAL = re.compile(r"<[|\uff5c].*[|\uff5c]>")
"""Added tokens that llama.cpp never reads out of plain text, whatever tokenizer.json says of them."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """`model`: gpt2 (byte-level BPE, with merges) or llama (SentencePiece, with scores). One entry a row."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    adds_space: bool

    def id_of(self, token: str | None) -> int | None:
        """The id of a special token; None where there is none of that text."""
        return self.tokens.index(token) if token in self.tokens else None


def read(folder: Path, *, rows: int) -> Vocabulary:
    """That of a model directory whose embedding has this many rows.

    Rows that no token has are named [PADn], as llama.cpp does. ModelError where there is no tokenizer.json, where it is
    of a kind that llama.cpp has not, or has more ids than rows.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{file} does not exist, and GGUF holds the tokenizer", hint="merge again: loradock merge")
    content: dict[str, Any] = json_object(file, most_bytes=MOST_VOCABULARY_BYTES)
    model = content["model"]
    if model.get("type") != "BPE":
        kind = model.get("type")
        raise ModelError(f"the tokenizer is of kind {kind}, not BPE", hint="llama.cpp's own convert_hf_to_gguf.py")
    added: list[Mapping[str, Any]] = content.get("added_tokens") or []
    names = {index: token for token, index in model["vocab"].items()} | {
        token["id"]: token["content"] for token in added
    }
    if max(names) >= rows:
        raise ModelError(f"the tokenizer has {max(names) + 1} ids, the embedding {rows} rows", hint="merge again")
    is_pieces = bool(model.get("byte_fallback"))
    tokens = tuple(names.get(index, f"[PAD{index}]") for index in range(rows))
    merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges") or [])
    return Vocabulary(
        model="llama" if is_pieces else "gpt2",
        pre="default" if is_pieces else pre_tokenizers.name_of(content),
        tokens=tokens,
        types=_types(names, added, rows=rows, unknown=model.get("unk_token"), has_bytes=is_pieces),
        merges=() if is_pieces else merges,
        scores=_scores(tokens, merges) if is_pieces else (),
        adds_space=pre_tokenizers.adds_space(content) if is_pieces else False,
    )


def _types(
    names: Mapping[int, str], added: list[Mapping[str, Any]], *, rows: int, unknown: str | None, has_bytes: bool
) -> tuple[int, ...]:
    types = [NORMAL if index in names else UNUSED for index in range(rows)]
    for index, token in names.items():
        if has_bytes and re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            types[index] = BYTE
    for entry in added:
        is_control = entry["special"] or LOOKS_SPECIAL.fullmatch(entry["content"])
        types[entry["id"]] = CONTROL if is_control else USER_DEFINED
    if has_bytes:
        for index, token in names.items():
            types[index] = UNKNOWN if token == unknown else types[index]
    return tuple(types)


def _scores(tokens: tuple[str, ...], merges: tuple[str, ...]) -> tuple[float, ...]:
    """The higher, the earlier two neighbours are merged to it: minus the number of the first merge that gives it."""
    first: dict[str, int] = {}
    for number, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", ""), number)
    is_short = {token for token in tokens if len(token) == 1 or re.fullmatch(r"<.*>", token)}
    return tuple(
        -float(first[token]) if token in first else 0.0 if token in is_short else NEVER_MERGED for token in tokens
    )
