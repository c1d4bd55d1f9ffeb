"""Text to token ids as training did it: template, date, special tokens, BOS; and the ids that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

from loradock.data.formats.base import Completion, Conversation, Message, RowError
from loradock.data.render import Renderer
from loradock.data.spans import Rendering, Span
from loradock.data.templates import ChatTemplate, resolve
from loradock.data.tokenise import Encoder, TokenizerSpec
from loradock.training.lineage import Lineage

PROBE = (Message("user", "a"), Message("assistant", "b"))


class Prompts:
    """Ids of prompts and of whole rows; `stop_ids` end an answer, `template` renders conversations."""

    def __init__(
        self,
        spec: TokenizerSpec,
        template: ChatTemplate,
        *,
        special_tokens: Any = "as_text",
        date: str | None = None,
        eos_ids: frozenset[int],
    ) -> None:
        self.template, self._spec = template, spec
        self._render = Renderer(
            template,
            special_tokens=spec.special_tokens,
            end_tokens=spec.end_tokens,
            loss="completion",
            appends_eos=spec.appends_eos,
            date=date,
            needs_places=special_tokens == "as_text",
        )
        self._encode = Encoder(spec, special_tokens=special_tokens)
        self.stop_ids = eos_ids | self._end_of_turn()

    @classmethod
    def of(cls, tokenizer: Any, lineage: Lineage | None, *, generation: Any = None) -> Self:
        """Those of a tokenizer with the template that was trained; `generation`: the model's generation config."""
        spec = TokenizerSpec.of(tokenizer)
        template = resolve("auto", own=spec.chat_template)
        today = datetime.now(UTC).date().isoformat() if template.is_dated else None
        named: Any = getattr(generation, "eos_token_id", None)
        listed = named if isinstance(named, (list, tuple)) else [] if named is None else [named]
        return cls(
            spec,
            template,
            special_tokens=lineage.special_tokens if lineage else "as_text",
            date=(lineage.date if lineage else None) or today,
            eos_ids=frozenset([tokenizer.eos_token_id, *listed]),
        )

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation up to where the assistant is to speak. RowError where the template refuses it."""
        return self._encode(self._render.prompt(messages))[0]

    def raw(self, text: str) -> list[int]:
        """Ids of text without a template, as the prompt of a prompt/completion row: with BOS where rows have it."""
        ids, _ = self._encode(Rendering(text, (), add_special_tokens=True))
        suffix = len(self._spec.suffix_ids)
        return ids[: len(ids) - suffix] if suffix else ids

    def row(self, sample: Conversation | Completion) -> tuple[list[int], list[Span]]:
        """Ids of a whole row, and the ranges of tokens that training learns of it."""
        return self._encode(self._render(sample))

    def prompt_of(self, sample: Conversation | Completion) -> list[int]:
        """Ids of what stands before the last answer of a row."""
        if isinstance(sample, Completion):
            return self.raw(sample.prompt)
        return self(sample.messages[:-1])

    def _end_of_turn(self) -> frozenset[int]:
        """The special token that training learns at the end of an answer; none where the template refuses a probe."""
        try:
            ids, ranges = self.row(Conversation(PROBE))
        except RowError:
            return frozenset()
        special = {self._encode.id_of(token) for token in self._spec.end_tokens}
        return frozenset(ids[last - 1] for _, last in ranges[-1:] if ids[last - 1] in special)
