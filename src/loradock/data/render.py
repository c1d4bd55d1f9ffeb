"""A sample and a chat template -> the text of a row and its supervised spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from loradock.data import call_syntax, chat_template, tool_text
from loradock.data.answer_spans import ADVICE, AnswerSpans
from loradock.data.formats.base import Completion, Conversation, Message, Sample
from loradock.data.formats.fields import RowError
from loradock.data.layouts import Layouts, Located
from loradock.data.raw_text import RawText
from loradock.data.remarks import ALTERED, CUT, ENDED, TOOLS, of_turns
from loradock.data.spans import Remark, Rendering, Span
from loradock.data.special import Finder, SpecialTokens
from loradock.data.structured import Structured
from loradock.data.templates import ChatTemplate
from loradock.data.turns import TurnEnds

Loss = Literal["auto", "completion", "assistant", "all"]
ToolsAs = Literal["keep", "text"]
Reasoning = Literal["as_template", "all_turns", "drop"]
PROBE = (Message("user", "a"), Message("assistant", "b"))


class Renderer:
    """Renders samples exactly as transformers does, and says which characters are learned.

    `special_tokens`: name -> text, as `tokenizer.special_tokens_map` (templates read `bos_token`, `eos_token`).
    `end_tokens`: special tokens of the vocabulary, any of which may end a turn.
    `appends_eos`: the tokenizer itself puts EOS after raw text, so that none is written here.
    `date` (YYYY-MM-DD): what the template is told where it asks for today's.
    `special_tokens`: what their text in a content is; but for as_control, a row that holds some is refused where its
    contents cannot be located.
    `tools`, `reasoning` and `arguments` (of the template, beside its messages): see `data.tools` and the keys after it.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *,
        special_tokens: Mapping[str, str],
        end_tokens: Sequence[str],
        loss: Loss,
        appends_eos: bool = False,
        date: str | None = None,
        special_tokens_as: SpecialTokens = "auto",
        tools: ToolsAs = "keep",
        reasoning: Reasoning = "as_template",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._text, dates = template.on(date) if date else (template.text, {})
        self._given: dict[str, Any] = {**special_tokens, **(arguments or {}), **dates}
        self._eos_token = special_tokens["eos_token"]
        self._ends = TurnEnds(end_tokens, eos_token=self._eos_token)
        self._loss: Loss = loss
        self._special = Finder({*end_tokens, self._eos_token})
        self._special_as: SpecialTokens = special_tokens_as
        self.raw = RawText(
            replace(template, text=self._text),
            given=self._given,
            finder=self._special,
            end_of_turn=lambda: self.end_of_turn,
            special_tokens=special_tokens_as,
            appends_eos=appends_eos,
            learns_all=loss == "all",
        )
        self._tools: ToolsAs = tools
        self._reasoning: Reasoning = reasoning
        self._structured = Structured(self._render_structure, name=template.name, ends=self._ends)
        self._has_generation_blocks = "endgeneration" in template.text
        self._answers = AnswerSpans(self._render, name=template.name, ends=self._ends, eos_token=self._eos_token)
        self._layouts = Layouts(
            lambda messages, is_prompt: self._render(messages, prompt=is_prompt)[0], ends=self._ends
        )

    def __call__(self, sample: Sample) -> Rendering:
        """Render one sample. RowError where the template refuses it or hides where the assistant speaks."""
        if isinstance(sample, Completion):
            return self.raw(sample)
        assert isinstance(sample, Conversation), "pairs have a room of their own"
        talk = self._as_configured(sample)
        rendering = self._with_structure(talk) if talk.is_structured else self._conversation(talk)
        remarks = (Remark(TOOLS),) if self._writes_tools(sample) else ()
        return replace(rendering, remarks=(*rendering.remarks, *remarks)) if remarks else rendering

    def documents(self, sample: Sample) -> list[Rendering]:
        """What a row becomes, at least one: several where each thought is to be learned and the template cuts some.

        Then each is the row up to an answer whose thought stands in it, and learns those answers whose thought no
        longer document has. RowError as `__call__`.
        """
        if self._reasoning != "all_turns" or self._loss not in ("auto", "assistant"):
            return [self(sample)]
        if not isinstance(sample, Conversation) or not any(message.has_thought for message in sample.messages):
            return [self(sample)]
        talk = self._as_configured(sample)
        turns = [index for index, message in enumerate(talk.messages) if message.role == "assistant"]
        remaining = self._learned([index for index in turns if talk.messages[index].is_learned], given=talk.given)
        renderings: list[Rendering] = []
        stop = len(talk.messages)
        while remaining:
            beginning = replace(talk, messages=talk.messages[:stop])
            cut = [index for index in self._cut(beginning, remaining) if index != stop - 1]
            if learned := [index for index in remaining if index not in cut]:
                renderings.append(self._learning(beginning, learned))
            remaining, stop = cut, max(cut, default=0) + 1
        return renderings[::-1] or [self(sample)]

    def _cut(self, talk: Conversation, turns: Sequence[int]) -> list[int]:
        """Those of the turns whose thought the template leaves out of this conversation."""
        if talk.is_structured:
            dropped = self._structured.dropped(talk)
            return [index for index in turns if index in dropped]
        text, _ = self._render(talk.messages)
        return [index for index in turns if talk.messages[index].content.strip() not in text]

    def _learning(self, talk: Conversation, learned: Sequence[int]) -> Rendering:
        """The conversation, of whose answers these are learned; what is changed of others' is not reported."""
        messages = [replace(message, is_learned=index in learned) for index, message in enumerate(talk.messages)]
        rendering = self(replace(talk, messages=tuple(messages)))
        contents = [turn.content.strip() for turn in messages if turn.role != "assistant" or turn.is_learned]
        if all(content in rendering.text for content in contents):
            return replace(rendering, remarks=tuple(remark for remark in rendering.remarks if remark.name != ALTERED))
        return rendering

    def prompt(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = ()) -> Rendering:
        """A conversation up to where the assistant is to speak, as it stands in a row; RowError as for one."""
        talk = self._as_configured(Conversation(tuple(messages), tools=tuple(tools)))
        if talk.is_structured:
            text = self._structured.rendered(talk, is_prompt=True)
            special = self._special_of_structure(talk, text, is_prompt=True)
            return Rendering(text, (), add_special_tokens=False, special_texts=special)
        messages, _ = self._with_one_end(talk.messages)
        text, _ = self._render(messages, prompt=True)
        if not any(self._special.holds(message.content) for message in messages):
            return Rendering(text, (), add_special_tokens=False)
        skeleton = self._layouts.skeleton(messages, prompt=True)
        spans = skeleton and skeleton.locate(text, contents=[message.content for message in messages])
        if not spans and self._special_as != "as_control":
            raise self._unlocated()
        return Rendering(text, (), add_special_tokens=False, special_texts=self._special.within(text, spans or []))

    @cached_property
    def end_of_turn(self) -> str:
        """The special token that an answer is learned to end with; "" where the template ends one otherwise."""
        try:
            rendering = self._conversation(Conversation(PROBE))
        except RowError:
            return ""
        _, end = rendering.spans[-1]
        return self._ends.last_in(rendering.text[:end])

    @cached_property
    def end_of_call(self) -> str:
        """The special token that a turn of calls is learned to end with; "" where there is none."""
        if self._tools == "text" or "tool" not in self._template.text:
            return ""
        return call_syntax.end_of(self.learned_text, self._ends.last_in)

    def learned_text(self, talk: Conversation) -> str:
        """What is learned of the last turn of a conversation; RowError as for a row."""
        rendering = self(talk)
        first, last = rendering.spans[-1]
        return rendering.text[first:last]

    def _with_one_end(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[Remark]]:
        """The messages, answers without the end that they bring themselves: the template writes one."""
        if self._special_as == "as_text":
            return messages, []
        found: dict[str, Remark] = {}
        kept = list(messages)
        for index, message in enumerate(messages):
            content = message.content
            while message.role == "assistant" and (end := self.raw.own_end(content)):
                content = content.rstrip().removesuffix(end)
                if not content.strip():  # nothing but ends: the row is refused as one that says nothing
                    break
                kept[index] = replace(message, content=content)
                found[end] = Remark(ENDED, end)
        return kept, list(found.values())

    def _as_configured(self, talk: Conversation) -> Conversation:
        """The conversation as `data.tools` and `data.reasoning` say; one of plain turns as it is."""
        if self._writes_tools(talk):
            talk = tool_text.as_text(talk)
        if self._reasoning == "drop" and any(message.thought for message in talk.messages):
            talk = replace(talk, messages=tuple(replace(message, thought="") for message in talk.messages))
        return talk

    def _writes_tools(self, talk: Conversation) -> bool:
        """Whether definitions, calls or results of the conversation become text."""
        return self._tools == "text" and bool(
            talk.tools or any(message.calls or message.role == "tool" for message in talk.messages)
        )

    def _with_structure(self, sample: Conversation) -> Rendering:
        """A conversation with tools, calls or thoughts."""
        messages, remarks = self._with_one_end(sample.messages)
        talk = replace(sample, messages=tuple(messages))
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns or turns[-1] != len(messages) - 1:
            raise RowError("the conversation does not end with an assistant turn, so nothing says how to answer it")
        text = self._structured.rendered(talk)
        learned = self._learned([index for index in turns if messages[index].is_learned], given=talk.given)
        dropped = self._structured.dropped(talk)
        found = self._structured.turns(talk, text, learned=learned, dropped=dropped)
        special = self._special_of_structure(talk, text)
        remarks += [Remark(CUT)] if set(dropped) & set(learned) else []
        remarks += of_turns(text, messages=messages, found=found)
        text, spans = self._ends.close(text, turns=found)
        if self._loss == "all":
            spans = ((0, len(text)),)
        return Rendering(text, spans, add_special_tokens=False, special_texts=special, remarks=tuple(remarks))

    def _special_of_structure(self, talk: Conversation, text: str, *, is_prompt: bool = False) -> tuple[Span, ...]:
        """The special tokens whose text stands in what a row says; RowError where it has to be known and is not.

        They are found by other names of the same length in their places: what the template writes keeps its own.
        """
        renamed = self._special.renamed(talk)
        if renamed == talk:
            return ()
        written = self._structured.rendered(renamed, is_prompt=is_prompt)
        if self._special.named(written) == text:
            return self._special.renamed_within(written)
        if self._special_as == "as_control":
            return ()
        raise self._unlocated()

    def _conversation(self, sample: Conversation) -> Rendering:
        messages, remarks = self._with_one_end(sample.messages)
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns or turns[-1] != len(messages) - 1:
            raise RowError("the conversation does not end with an assistant turn, so nothing says how to answer it")
        text, generated = self._render(messages)
        blocks = dict(zip(turns, generated, strict=True)) if len(generated) == len(turns) else {}
        learned = self._learned([index for index in turns if messages[index].is_learned], given=sample.given)
        located = self._layouts.located(text, messages=messages, turns=turns, learned=learned)
        special = self._special_in_contents(text, messages=messages, located=located)
        found = located and [located.turns[index] for index in learned]
        text, spans = self._answers.closed(text, found=found, messages=messages, turns=learned, blocks=blocks)
        self._answers.check(text, spans, answers=[messages[index].content for index in learned])
        remarks += of_turns(text, messages=messages, found=found or [])
        if self._loss == "all":
            spans = ((0, len(text)),)
        return Rendering(text, spans, add_special_tokens=False, special_texts=special, remarks=tuple(remarks))

    def _special_in_contents(
        self, text: str, *, messages: Sequence[Message], located: Located | None
    ) -> tuple[Span, ...]:
        """The special tokens whose text stands in a content; RowError where it has to be known and is not."""
        if not any(self._special.holds(message.content) for message in messages):
            return ()
        if located:
            return self._special.within(text, located.contents)
        if self._special_as == "as_control":
            return ()
        raise self._unlocated()

    def _unlocated(self) -> RowError:
        return RowError(
            f"template {self._template.name}: a content holds the text of a special token, and contents cannot be "
            f"located in the rendered conversation; --set data.special_tokens=as_control, or {ADVICE}"
        )

    def _learned(self, turns: list[int], *, given: int) -> list[int]:
        """The turns that data.loss learns; the last is always one."""
        if self._loss == "assistant":
            return turns
        return [index for index in turns if index >= given] if self._loss == "auto" else turns[-1:]

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> tuple[str, list[Span]]:
        written = [{"role": message.role, "content": message.content} for message in messages]
        return self._render_given(written, given=self._given, prompt=prompt)

    def _render_structure(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], prompt: bool
    ) -> str:
        given = {**self._given, "tools": [*tools]} if tools else self._given
        return self._render_given(messages, given=given, prompt=prompt)[0]

    def _render_given(
        self, messages: Sequence[Mapping[str, Any]], *, given: Mapping[str, Any], prompt: bool
    ) -> tuple[str, list[Span]]:
        try:
            return chat_template.render(
                self._text,
                messages,
                name=self._template.name,
                given=given,
                is_prompt=prompt,
                is_tracked=self._has_generation_blocks,
            )
        except chat_template.Refused as error:
            raise RowError(f"the chat template ({self._template.name}) refuses this conversation: {error}") from error
