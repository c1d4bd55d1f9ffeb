"""Special tokens whose text stands in a content (`x</s>y`): found, and encoded as the plain text that they are there.

A tokenizer takes every occurrence of `</s>` for the control token. Here the template's own are given other names of the
same length, under which a copy of the tokenizer knows them; to that copy, what contents hold is text like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from loradock.data.spans import Span

if TYPE_CHECKING:
    from tokenizers import Encoding

SpecialTokens = Literal["auto", "as_text", "as_control"]
"""auto: contents hold text, and raw text that a chat template wrote its control tokens."""
FIRST_ALIAS = 0xF0000
"""The first character of a private plane of Unicode: no normaliser touches what lies there."""


def of_contents(asked: SpecialTokens) -> Literal["as_text", "as_control"]:
    """What the text of a special token in a content is."""
    return "as_control" if asked == "as_control" else "as_text"


class Finder:
    """Finds the text of special tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted(tokens, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._alias_of = {token: chr(FIRST_ALIAS + n) * len(token) for n, token in enumerate(longest_first)}
        self._token_of = {alias: token for token, alias in self._alias_of.items()}
        self._alias = re.compile("|".join(map(re.escape, self._token_of)) or r"(?!)")
        self._firsts = tuple({token[0] for token in longest_first})

    def holds(self, content: str) -> bool:
        """True where a special token's text stands in `content`."""
        return any(first in content for first in self._firsts) and bool(self._token.search(content))

    def first_of(self, text: str) -> str:
        """The special token that `text` begins with; "" where it begins with none."""
        match = self._token.match(text)
        return match[0] if match else ""

    def within(self, text: str, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Where special tokens' texts stand, of those that lie within one of `spans` as a whole."""
        return tuple(match.span() for first, last in spans for match in self._token.finditer(text, first, last))

    def renamed(self, value: Any) -> Any:
        """A value in whose texts, at any depth, special tokens have other names of the same length."""
        if isinstance(value, str):
            return self._token.sub(lambda match: self._alias_of[match[0]], value)
        if isinstance(value, (list, tuple)):
            parts = [self.renamed(each) for each in value]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, dict):
            return {self.renamed(key): self.renamed(each) for key, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: self.renamed(getattr(value, each.name)) for each in fields(value)})
        return value

    def named(self, text: str) -> str:
        """A text with the special tokens' own names again."""
        return self._alias.sub(lambda match: self._token_of[match[0]], text)

    def renamed_within(self, text: str) -> tuple[Span, ...]:
        """Where special tokens with other names stand."""
        return tuple(match.span() for match in self._alias.finditer(text))


class Apart:
    """Encodes texts in which some occurrences of special tokens are text; made from a tokenizer's JSON."""

    def __init__(self, backend: str) -> None:
        from tokenizers import Tokenizer

        tree = json.loads(backend)
        self._names: dict[str, str] = {}
        known: list[tuple[str, int]] = []
        for number, token in enumerate(tree["added_tokens"]):
            text = str(token["content"])
            if token["special"]:
                token["content"] = self._names[text] = chr(FIRST_ALIAS + number) * len(text)
            known.append((str(token["content"]), token["id"]))
        _rename(tree["model"], self._names)
        tree["post_processor"] = None
        self._tokenizer = Tokenizer.from_str(json.dumps(tree))
        self._ids = {self._tokenizer.token_to_id(content): number for content, number in known}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: str, *, texts: Sequence[Span]) -> tuple[Encoding, list[int]]:
        """The encoding of `text`, with its offsets, and its ids; special tokens within `texts` are encoded as text."""
        pieces: list[str] = []
        position = 0
        for first, last in [*texts, (len(text), len(text))]:
            pieces += [self._token.sub(lambda match: self._names[match[0]], text[position:first]), text[first:last]]
            position = last
        encoding = self._tokenizer.encode("".join(pieces), add_special_tokens=False)
        return encoding, [self._ids.get(each, each) for each in encoding.ids]


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Take special tokens out of the model's own words, where text could be taken for them."""
    words, kept = model["vocab"], {model.get("unk_token")}
    if isinstance(words, dict):
        merged = {"".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges") or []}
        for token in set(names) & set(words) - kept - merged:
            words[names[token]] = words.pop(token)
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in words]
