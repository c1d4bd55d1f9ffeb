"""Text to token ids as training did it: template, date, special tokens, BOS; and the ids that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

from loradock.data.call_readers import CallSyntax
from loradock.data.call_syntax import syntax_of
from loradock.data.formats.base import Completion, Conversation, Message
from loradock.data.formats.fields import RowError
from loradock.data.render import Reasoning, Renderer, ToolsAs
from loradock.data.spans import Span
from loradock.data.special import SpecialTokens
from loradock.data.structured import AS_TEXT
from loradock.data.templates import DEFAULT, ChatTemplate, resolve
from loradock.data.tokenise import Encoder, TokenizerSpec
from loradock.errors import ModelError
from loradock.training.lineage import Lineage

TRAINED_AS_TEXT = "a run of loradock train --set data.tools=text takes them as text"


class Prompts:
    """Ids of prompts and of whole rows; `stop_ids` end an answer, `template` renders conversations.

    `name`: whose they are; `has_template` False: nobody says how its turns are written, and turns are refused.
    """

    def __init__(
        self,
        spec: TokenizerSpec,
        template: ChatTemplate,
        *,
        special_tokens: SpecialTokens = "auto",
        date: str | None = None,
        tools: ToolsAs = "keep",
        reasoning: Reasoning = "as_template",
        template_arguments: Mapping[str, Any] | None = None,
        eos_ids: frozenset[int],
        name: str = "the model",
        has_template: bool = True,
    ) -> None:
        self.template, self._spec = template, spec
        self.has_template, self._name = has_template, name
        self._render = Renderer(
            template,
            special_tokens=spec.special_tokens,
            end_tokens=spec.end_tokens,
            loss="completion",
            appends_eos=spec.appends_eos,
            date=date,
            special_tokens_as=special_tokens,
            tools=tools,
            reasoning=reasoning,
            arguments=template_arguments,
        )
        self._encode = Encoder(spec, special_tokens=special_tokens)
        self.stop_ids = eos_ids | self._ends_of_turns()

    @classmethod
    def of(
        cls, tokenizer: Any, lineage: Lineage | None, *, generation: Any = None, template_name: str | None = None
    ) -> Self:
        """Those of a tokenizer with the template that was trained; `generation`: the model's generation config.

        `template_name`: that of a tokenizer which brings none, one of `templates.NAMES`.
        """
        spec = TokenizerSpec.of(tokenizer)
        own_jinja = spec.own_template
        template = resolve("auto" if own_jinja.text else template_name or "auto", own=replace(own_jinja, named=()))
        today = datetime.now(UTC).date().isoformat() if template.is_dated else None
        eos_ids: Any = getattr(generation, "eos_token_id", None)
        listed = eos_ids if isinstance(eos_ids, (list, tuple)) else [] if eos_ids is None else [eos_ids]
        return cls(
            spec,
            template,
            special_tokens=lineage.special_tokens if lineage else "auto",
            date=(lineage.date if lineage else None) or today,
            tools=lineage.tools if lineage else "keep",
            reasoning=lineage.reasoning if lineage else "as_template",
            template_arguments=lineage.template_arguments if lineage else None,
            eos_ids=frozenset([tokenizer.eos_token_id, *listed]),
            name=tokenizer.name_or_path or "the model",
            has_template=bool(own_jinja.text or template_name),
        )

    def check_template(self) -> None:
        """ModelError where there is no template, so that turns can be written in no way that was trained."""
        if not self.has_template:
            what = f"{self._name} has no chat template: nothing says how turns are written"
            raise ModelError(what, hint=f"--template {DEFAULT}, which training takes for such a model, or another")

    def __call__(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of a conversation up to where the assistant is to speak. RowError where the template refuses it.

        ModelError as `check_template`; so do `row` and `prompt_of` for conversations.
        """
        self.check_template()
        try:
            rendering = self._render.prompt(messages, tools=tools)
        except RowError as error:
            raise RowError(str(error).replace(AS_TEXT, TRAINED_AS_TEXT)) from error
        return _some(self._encode(rendering)[0])

    def raw(self, text: str) -> list[int]:
        """Ids of text without a template, as the prompt of a prompt/completion row: with BOS where rows have it.

        RowError where that is none at all.
        """
        ids, _ = self._encode(self._render.raw.prompt(text))
        suffix = len(self._spec.suffix_ids)
        return _some(ids[: len(ids) - suffix] if suffix else ids)

    def row(self, sample: Conversation | Completion) -> tuple[list[int], list[Span]]:
        """Ids of a whole row, and the ranges of tokens that training learns of it."""
        if isinstance(sample, Conversation):
            self.check_template()
        return self._encode(self._render(sample))

    def prompt_of(self, sample: Conversation | Completion) -> list[int]:
        """Ids of what stands before the last answer of a row."""
        if isinstance(sample, Completion):
            return self.raw(sample.prompt)
        return self(sample.messages[:-1], tools=sample.tools)

    @cached_property
    def call_syntax(self) -> CallSyntax | None:
        """How this template writes calls of tools; None where it writes none, or in a way that nothing reads."""
        return syntax_of(self._render.learned_text) if self.has_template else None

    def _ends_of_turns(self) -> frozenset[int]:
        """The special tokens that training learns at the end of an answer and of calls; none where a probe is refused.

        gpt-oss ends a call with another token than an answer; a model that goes on behind it would make up the result.
        """
        if not self.has_template:
            return frozenset()
        ends = (self._encode.id_of(end) for end in (self._render.end_of_turn, self._render.end_of_call))
        return frozenset(end for end in ends if end is not None)


def _some(ids: list[int]) -> list[int]:
    """The ids of a prompt; RowError where there are none: a model has nothing to continue."""
    if not ids:
        raise RowError("the prompt has no tokens: its text is empty, or the chat template renders nothing of it")
    return ids
