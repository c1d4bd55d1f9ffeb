"""Rendered rows -> token ids and the mask of supervised tokens, exact to the character."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loradock.data.formats.fields import RowError
from loradock.data.spans import Rendering, Span
from loradock.data.special import Apart, SpecialTokens
from loradock.data.templates import Brought, ChatTemplate, resolve
from loradock.errors import LoradockError, ModelError
from loradock.files import regular
from loradock.files.foreign import is_panic, reading, said

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase


TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""Where a chat template may lie, the file that counts first."""
AGAIN = "copy the tokenizer's files again (tokenizer.json, tokenizer_config.json)"
_PROBES = ("A row, its 2nd line\n  and an answer.", "  two  spaces é 日本 🙂\n\n", "[INST] x [/INST] y")


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Everything of a fast tokenizer that tokens depend on; small enough to send to a worker process.

    `backend` is the JSON of the tokenizers.Tokenizer, with offsets untrimmed: a byte-level post-processor may hide
    the space in front of a word, which must count as covered.
    """

    backend: str
    special_tokens: dict[str, str]
    end_tokens: tuple[str, ...]
    own_template: Brought
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    bos_id: int | None
    appends_eos: bool
    splits_special_tokens: bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenizerSpec:
        """The spec of a loaded tokenizer; ModelError where it is slow-only, has no EOS, or differs from its JSON."""
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer of {name} has no fast (Rust) version, which exact label masks need",
                hint="convert it: AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR) with a tokenizer.json",
            )
        if not tokenizer.eos_token:
            raise ModelError(
                f"the tokenizer of {name} has no eos_token, so a model could not learn to stop",
                hint='add "eos_token" to its tokenizer_config.json',
            )
        spec = _describe(tokenizer, name=name)
        _verify(spec, tokenizer=tokenizer, name=name)
        return spec

    def template(self, asked: str) -> ChatTemplate:
        """What `data.template` comes to with this tokenizer. Raises what `templates.resolve` raises."""
        return resolve(asked, own=self.own_template)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over all that ids and masks depend on (the template is hashed apart)."""
        parts = [self.backend, self.special_tokens, self.end_tokens, self.splits_special_tokens]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, *, add: bool, name: str) -> list[int]:
    """What transformers encodes a text to. ModelError where it cannot."""
    with reading(Path(name), f"holds a tokenizer that cannot encode {text!r}", hint=AGAIN):
        return list(tokenizer(text, add_special_tokens=add)["input_ids"])


def _own_template(tokenizer: PreTrainedTokenizerBase, *, name: str) -> Brought:
    """The chat template that a tokenizer brings. ModelError where it is no text."""
    own: Any = tokenizer.chat_template
    several: dict[str, Any] = own if isinstance(own, dict) else {}
    own = several.get("default") if several else own
    if own is not None and not isinstance(own, str):
        raise ModelError(f"{name}: chat_template is {type(own).__name__}, not text", hint=AGAIN)
    return Brought(
        text=own or None,
        file=_file_of_template(Path(name)) if own else "",
        named=() if own else tuple(sorted(map(str, several))),
        directory=tokenizer.name_or_path,
    )


def _file_of_template(directory: Path) -> str:
    """The name of the file that a tokenizer's template was read from; "" where it was read from none."""
    for name in TEMPLATE_FILES:
        file = directory / name
        if file.is_file() and (file.suffix == ".jinja" or '"chat_template"' in regular.read_text(file)):
            return name
    return ""


def _describe(tokenizer: PreTrainedTokenizerBase, *, name: str) -> TokenizerSpec:
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    inner = _ids(tokenizer, "a", add=False, name=name)
    outer = _ids(tokenizer, "a", add=True, name=name)
    before = next((i for i in range(len(outer)) if outer[i : i + len(inner)] == inner), 0)
    suffix = tuple(outer[before + len(inner) :])
    backend: Any = tokenizer.backend_tokenizer
    bos_id: Any = tokenizer.bos_token_id
    return TokenizerSpec(
        backend=_untrimmed(backend.to_str()),
        special_tokens={name: str(text) for name, text in tokenizer.special_tokens_map.items()},
        end_tokens=tuple(sorted(special)),
        own_template=_own_template(tokenizer, name=name),
        prefix_ids=tuple(outer[:before]),
        suffix_ids=suffix,
        bos_id=bos_id,
        appends_eos=tokenizer.eos_token_id in suffix,
        splits_special_tokens=bool(getattr(tokenizer, "split_special_tokens", False)),
    )


@lru_cache(maxsize=1)
def _untrimmed(backend: str) -> str:
    """The tokenizer's JSON without truncation, padding and trimmed offsets; ids stay the same.

    A start asks several times of one tokenizer, and a large vocabulary takes a second each.
    """
    tree = json.loads(backend)
    tree["truncation"] = tree["padding"] = None
    pending = [tree.get("post_processor")]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if "trim_offsets" in node:
                node["trim_offsets"] = False
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return json.dumps(tree, ensure_ascii=False, sort_keys=True)


def _verify(spec: TokenizerSpec, *, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    encoder = Encoder(spec)
    for probe in (*_PROBES, *(f"x{token}y {token}" for token in spec.end_tokens[:8])):
        for add in (False, True):
            try:
                ids, _ = encoder(Rendering(probe, (), add_special_tokens=add))
            except RowError as error:
                raise ModelError(f"{name}: {error}", hint=AGAIN) from error
            if ids != _ids(tokenizer, probe, add=add, name=name):
                raise ModelError(
                    f"the tokenizer of {name} gives other ids than its tokenizer.json for {probe!r}",
                    hint="use a tokenizer whose Python class adds nothing to its tokenizer.json",
                )


class Encoder:
    """Encodes rendered rows with one tokenizer, in this thread only."""

    def __init__(self, spec: TokenizerSpec, *, special_tokens: SpecialTokens = "auto") -> None:
        from tokenizers import Tokenizer

        self._spec = spec
        self._splits_texts = special_tokens != "as_control" and not spec.splits_special_tokens
        with reading(Path("tokenizer.json"), "describes no tokenizer", hint=AGAIN):
            self._tokenizer = Tokenizer.from_str(spec.backend)
        self._tokenizer.encode_special_tokens = spec.splits_special_tokens

    def __call__(self, rendering: Rendering) -> tuple[list[int], list[Span]]:
        """Token ids of one row and the supervised ranges `[first, last)` of tokens, ascending and disjoint.

        A token is supervised where it covers at least one supervised character, so one that merges across the
        boundary is learned. Token 0 never is: nothing precedes it that could predict it.
        """
        ids, ranges = self.located(rendering)
        if rendering.add_special_tokens:
            ids, ranges = self._surround(ids, ranges)
        return ids, _disjoint(ranges)

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary; None where it has none."""
        return self._tokenizer.token_to_id(token)

    def located(self, rendering: Rendering) -> tuple[list[int], list[Span]]:
        """Token ids of the rendered text alone, and for each of its spans the tokens that cover it.

        RowError for a text that the tokenizer cannot encode; ModelError where it breaks down over it.
        """
        try:
            if rendering.special_texts and self._splits_texts:
                encoding, ids = self._apart(rendering.text, texts=rendering.special_texts)
            else:
                encoding = self._tokenizer.encode(rendering.text, add_special_tokens=False)
                ids = encoding.ids
        except LoradockError:
            raise
        except Exception as error:  # tokenizers raises bare Exception, and TypeError for what is no UTF-8
            raise RowError(f"the tokenizer cannot encode this row: {said(error)}") from error
        except BaseException as error:
            if not is_panic(error):
                raise
            raise ModelError(f"the tokenizer breaks down over a row: {said(error)}", hint=AGAIN) from error
        return ids, [_covering(encoding, span, length=len(ids)) for span in rendering.spans]

    @cached_property
    def _apart(self) -> Apart:
        """Encodes rows whose contents hold the text of special tokens."""
        return Apart(self._spec.backend)

    def _surround(self, ids: list[int], ranges: list[Span]) -> tuple[list[int], list[Span]]:
        prefix = list(self._spec.prefix_ids)
        if prefix and ids[:1] == [self._spec.bos_id] and prefix[-1] == self._spec.bos_id:
            prefix = []
        suffix = list(self._spec.suffix_ids)
        shifted = [(first + len(prefix), last + len(prefix)) for first, last in ranges]
        if self._spec.appends_eos and shifted:
            shifted[-1] = (shifted[-1][0], len(prefix) + len(ids) + len(suffix))
        return prefix + ids + suffix, shifted


def _covering(encoding: Encoding, span: Span, *, length: int) -> Span:
    """The tokens that cover characters `[start, end)`: starts ascend over tokens, so they are one range."""
    start, end = span
    if start >= end:
        return (0, 0)
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
    if first is None or last is None:
        return _covering_by_offsets(encoding, span)
    while first > 0 and _start_of(encoding, first - 1) >= start:
        first -= 1
    last += 1
    while last < length and _start_of(encoding, last) < end:
        last += 1
    return (first, last)


def _start_of(encoding: Encoding, token: int) -> int:
    characters = encoding.token_to_chars(token)
    return characters[0] if characters else -1


def _covering_by_offsets(encoding: Encoding, span: Span) -> Span:
    """As `_covering`, over all offsets: for spans that begin or end with characters the tokenizer dropped."""
    start, end = span
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], np.maximum(offsets[:, 1], offsets[:, 0] + 1)
    covering = np.flatnonzero((starts < end) & (ends > start))
    return (int(covering[0]), int(covering[-1]) + 1) if covering.size else (0, 0)


def _disjoint(ranges: Sequence[Span]) -> list[Span]:
    reached, kept = 1, []
    for first, last in ranges:
        if max(first, reached) < last:
            kept.append((max(first, reached), last))
            reached = last
    return kept
