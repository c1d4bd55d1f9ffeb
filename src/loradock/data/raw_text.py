"""Text without turns: what ends it, which of its special tokens are control tokens, and what of it is learned.

Raw text that a chat template wrote (`<|im_start|>user\\n...`) holds the template's own control tokens; any other holds
text. Both keep the end that they bring, white space behind it or not: a second one would be learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from loradock.data import chat_template
from loradock.data.formats.base import Completion
from loradock.data.remarks import PROMPTED, WRITTEN
from loradock.data.spans import Remark, Rendering, Skeleton, Span, marker
from loradock.data.special import Finder, SpecialTokens
from loradock.data.templates import NAMES, ChatTemplate, named

PROBES = (("user", "assistant"), ("system", "user", "assistant"))


class RawText:
    """Renders raw rows and prompts.

    `given`: what the template is rendered with, the names and texts of special tokens among it. `finder` finds those of
    the vocabulary, `end_of_turn` says what ends an answer under the template. `appends_eos`: the tokenizer puts EOS
    after raw text by itself. `learns_all`: the prompt too, and what stands behind the end.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *,
        given: Mapping[str, Any],
        finder: Finder,
        end_of_turn: Callable[[], str],
        special_tokens: SpecialTokens,
        appends_eos: bool,
        learns_all: bool,
    ) -> None:
        self._template = template
        self._given = given
        self._special = finder
        self._end_of_turn = end_of_turn
        self._mode: SpecialTokens = special_tokens
        self._appends_eos = appends_eos
        self._learns_all = learns_all
        self._bos, self._eos = given.get("bos_token", ""), given["eos_token"]

    def __call__(self, sample: Completion) -> Rendering:
        """A row; its completion is learned up to the end of the text."""
        text = sample.prompt + sample.completion
        is_written = self._is_written(text)
        remarks = (Remark(WRITTEN),) if is_written else (Remark(PROMPTED),) if sample.prompt.strip() else ()
        text, begins, ends = self._ended(text)
        span = (0, len(text)) if self._learns_all else (len(sample.prompt), ends)
        special = () if is_written else self._special_in(text, stop=begins)
        return Rendering(text, (span,), add_special_tokens=True, special_texts=special, remarks=remarks)

    def prompt(self, text: str) -> Rendering:
        """A prompt, as it stands in a row."""
        special = () if self._is_written(text) else self._special_in(text, stop=len(text))
        return Rendering(text, (), add_special_tokens=True, special_texts=special)

    def own_end(self, text: str) -> str:
        """The end that a text brings, white space behind it aside; "" where it has none."""
        bare = text.rstrip()
        if bare.endswith(self._eos):
            return self._eos
        if self._mode == "as_text" or not self._special.holds(bare):
            return ""
        end = self._end_of_turn()
        return end if end and bare.endswith(end) else ""

    def _ended(self, text: str) -> tuple[str, int, int]:
        """The text with one end, where that begins and where it ends; the tokenizer's own EOS comes behind."""
        own, bare = self.own_end(text), len(text.rstrip())
        if self._appends_eos:
            text = text[: bare - len(own)] if own == self._eos else text
            return text, len(text), len(text)
        if own:
            return text, bare - len(own), bare
        return text + self._eos, len(text), len(text) + len(self._eos)

    def _special_in(self, text: str, *, stop: int) -> tuple[Span, ...]:
        """Special tokens in raw text up to `stop`, but for the BOS that it begins with."""
        first = len(self._bos) if text.startswith(self._bos) else 0
        return self._special.within(text, [(first, max(first, stop))]) if self._special.holds(text) else ()

    def _is_written(self, text: str) -> bool:
        """True where a chat template wrote the text, as far as its beginning tells."""
        if self._mode != "auto" or not self._special.holds(text):
            return False
        bare = text.lstrip()
        inner = bare.removeprefix(self._bos).lstrip()
        own = {value for value in self._given.values() if isinstance(value, str)}
        return self._special.first_of(inner) not in ("", *own) or any(
            bare.startswith(opening) or inner.startswith(opening) for opening in self._openings
        )

    @cached_property
    def _openings(self) -> tuple[str, ...]:
        """What the tokenizer's chat template, and each that is shipped, writes in front of the first content."""
        found: set[str] = set()
        for template in (self._template, *map(named, NAMES)):
            for roles in PROBES:
                turns = [{"role": role, "content": marker(index)} for index, role in enumerate(roles)]
                try:
                    text, _ = chat_template.render(template.text, turns, name=template.name, given=self._given)
                except chat_template.Refused:  # a template need not know a system turn
                    continue
                opening = Skeleton.parse(text).literals[0]
                found |= {opening, opening.removeprefix(self._bos)}
        return tuple(opening for opening in found if opening.strip())
