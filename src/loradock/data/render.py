"""A sample and a chat template -> the text of a row and its supervised spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from loradock.data.formats.base import Completion, Conversation, Message, RowError, Sample
from loradock.data.spans import Rendering, Skeleton, Span, TurnEnds, marker
from loradock.data.templates import ChatTemplate

Loss = Literal["completion", "assistant", "all"]
PATTERNS_KEPT = 4096


class Renderer:
    """Renders samples exactly as transformers does, and says which characters are learned.

    `special_tokens`: name -> text, as `tokenizer.special_tokens_map` (templates read `bos_token`, `eos_token`).
    `end_tokens`: special tokens of the vocabulary, any of which may end a turn.
    `appends_eos`: the tokenizer itself puts EOS after raw text, so that none is written here.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *,
        special_tokens: Mapping[str, str],
        end_tokens: Sequence[str],
        loss: Loss,
        appends_eos: bool = False,
    ) -> None:
        self._template = template
        self._special_tokens = dict(special_tokens)
        self._eos_token = special_tokens["eos_token"]
        self._ends = TurnEnds(end_tokens, eos_token=self._eos_token)
        self._loss: Loss = loss
        self._appends_eos = appends_eos
        self._has_generation_blocks = "endgeneration" in template.text
        self._skeletons: dict[tuple[tuple[str, str | None], ...], Skeleton | None] = {}

    def __call__(self, sample: Sample) -> Rendering:
        """Render one sample. RowError where the template refuses it or hides where the assistant speaks."""
        if isinstance(sample, Completion):
            return self._raw(sample)
        return self._conversation(sample)

    def _raw(self, sample: Completion) -> Rendering:
        text = sample.prompt + sample.completion
        if not self._appends_eos and not text.endswith(self._eos_token):
            text += self._eos_token
        start = 0 if self._loss == "all" else len(sample.prompt)
        return Rendering(text, ((start, len(text)),), add_special_tokens=True)

    def _conversation(self, sample: Conversation) -> Rendering:
        messages = sample.messages
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns or turns[-1] != len(messages) - 1:
            raise RowError("the conversation does not end with an assistant turn, so nothing says how to answer it")
        text, generated = self._render(messages)
        spans = self._from_generation_blocks(text, generated=generated, messages=messages, turns=turns)
        if spans is None:
            spans = self._from_pieces(text, messages=messages, turns=turns)
        if spans is None:
            spans = self._from_prefixes(text, messages=messages, turns=turns)
        text, closed = spans
        if self._loss == "completion":
            closed = closed[-1:]
        elif self._loss == "all":
            closed = ((0, len(text)),)
        return Rendering(text, closed, add_special_tokens=False)

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> tuple[str, list[Span]]:
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        special_tokens: dict[str, Any] = self._special_tokens
        try:
            rendered: Any = render_jinja_template(
                conversations=[[{"role": message.role, "content": message.content} for message in messages]],
                chat_template=self._template.text,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=self._has_generation_blocks,
                **special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RowError(f"the chat template ({self._template.name}) refuses this conversation: {error}") from error
        (text,), generated = rendered
        return text, generated[0] if generated else []

    def _from_generation_blocks(
        self, text: str, *, generated: list[Span], messages: Sequence[Message], turns: list[int]
    ) -> tuple[str, tuple[Span, ...]] | None:
        if len(generated) != len(turns):
            return None
        if any(messages[i].content.strip() not in text[a:b] for i, (a, b) in zip(turns, generated, strict=True)):
            return None
        if all(self._ends.ends_with_one(text[start:end]) for start, end in generated):
            return text, tuple(generated)
        return self._ends.close(text, turns=generated)

    def _from_pieces(
        self, text: str, *, messages: Sequence[Message], turns: list[int]
    ) -> tuple[str, tuple[Span, ...]] | None:
        skeleton = self._skeleton(messages, turns=turns)
        if skeleton is None:
            return None
        places = skeleton.locate(text, contents=[message.content for message in messages])
        if places is None:
            return None
        return self._ends.close(text, turns=[places[index] for index in turns])

    def _skeleton(self, messages: Sequence[Message], *, turns: list[int]) -> Skeleton | None:
        pattern = tuple((m.role, None if m.content.strip() else m.content) for m in messages)
        if pattern not in self._skeletons:
            if len(self._skeletons) >= PATTERNS_KEPT:
                self._skeletons.clear()
            self._skeletons[pattern] = self._parse_skeleton(messages, turns=turns)
        return self._skeletons[pattern]

    def _parse_skeleton(self, messages: Sequence[Message], *, turns: list[int]) -> Skeleton | None:
        marked = [
            Message(message.role, marker(index) if message.content.strip() else message.content)
            for index, message in enumerate(messages)
        ]
        skeleton = Skeleton.parse(self._render(marked)[0])
        return skeleton if skeleton.has_once(turns) else None

    def _from_prefixes(
        self, text: str, *, messages: Sequence[Message], turns: list[int]
    ) -> tuple[str, tuple[Span, ...]]:
        """Spans from ever longer prefixes: a turn is what stands between its prompt and the end of the next prefix.

        The prefix ends with the turn's own end tokens, so that only a missing EOS at the very end is left to add.
        """
        learned = turns if self._loss == "assistant" else turns[-1:]
        spans: list[Span] = []
        for index in learned:
            before, _ = self._render(messages[:index], prompt=True)
            upto, _ = self._render(messages[: index + 1])
            if not (text.startswith(before) and text.startswith(upto) and len(before) < len(upto)):
                raise RowError(
                    f"template {self._template.name}: cannot locate the assistant's text in the rendered conversation; "
                    "name a template (--set data.template=chatml) or use one with {% generation %} blocks"
                )
            spans.append((len(before), len(before) + len(upto[len(before) :].rstrip())))
        if not self._ends.ends_with_one(text):
            start, _ = spans[-1]
            text += self._eos_token
            spans[-1] = (start, len(text))
        return text, tuple(spans)
