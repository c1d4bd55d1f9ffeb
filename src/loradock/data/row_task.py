"""Rows -> text to learn as tokens and masks: with which template, and what is told of it.

A row is one document; where each thought is learned (`data.reasoning: all_turns`) it may be several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data import chat_template, remarks
from loradock.data.cache import FIRST, Chunk
from loradock.data.formats.base import Conversation
from loradock.data.formats.fields import RowError
from loradock.data.pool import Preparer, Refused, Result, Row
from loradock.data.problems import Problems
from loradock.data.render import Loss, Reasoning, Renderer, ToolsAs
from loradock.data.spans import Remark
from loradock.data.special import SpecialTokens
from loradock.data.structured import AS_TEXT
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import Encoder, TokenizerSpec
from loradock.errors import ConfigError

LATER = 1
"""What a document of a row is, after its FIRST."""
NOTHING_LEARNED = "this row has no supervised token: the answer is empty under the chat template"


@dataclass(frozen=True, kw_only=True)
class Task:
    """How rows become text to learn: everything a worker process needs. `date` (YYYY-MM-DD) is the template's today."""

    spec: TokenizerSpec
    template: ChatTemplate
    loss: Loss
    special_tokens: SpecialTokens = "auto"
    date: str | None = None
    tools: ToolsAs = "keep"
    reasoning: Reasoning = "as_template"
    template_arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unread_fields: frozenset[str] = frozenset()

    @classmethod
    def of(cls, data: DataConfig, spec: TokenizerSpec) -> Task:
        """As the configuration asks for it. ConfigError or InputMissing for a template that is none."""
        template = spec.template(data.template)
        if data.template != "auto":
            check_syntax(template)
        date = data.date or datetime.now(UTC).date().isoformat() if template.is_dated else None
        return cls(
            spec=spec,
            template=template,
            loss=data.loss,
            special_tokens=data.special_tokens,
            date=date,
            tools=data.tools,
            reasoning=data.reasoning,
            template_arguments=data.template_arguments,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """See `Work`."""
        parts: dict[str, Any] = {
            "tokenizer": self.spec.fingerprint,
            "template": self.template.text,
            "loss": self.loss,
            "special_tokens": self.special_tokens,
        }
        chosen = {
            "date": self.date,
            "tools": "" if self.tools == "keep" else f"{self.tools}, counted",
            "reasoning": "" if self.reasoning == "as_template" else self.reasoning,
            "template_arguments": dict(self.template_arguments),
        }
        return parts | {name: value for name, value in chosen.items() if value}

    def preparer(self) -> Preparer:
        """See `Work`."""
        return ChunkPreparer(self)

    def notes(self, manifest: Mapping[str, Any], sources: Sequence[SourceConfig]) -> Iterator[str]:
        """See `Work`."""
        yield from remarks.of_template(self.template, vocabulary=self.spec.backend)
        yield from remarks.of_arguments(self.template_arguments, template=self.template)
        yield from remarks.of_special_texts(manifest["special_texts"], special_tokens=self.special_tokens)
        if manifest["samples"] < manifest["rows"] and self.reasoning == "all_turns":
            yield f"{manifest['samples']:,} rows became {manifest['rows']:,} documents (data.reasoning all_turns)"
        counts = Counter({Remark(name, detail): count for name, detail, count in manifest["remarks"]})
        formats = [contents["format"] for contents in manifest["contents"]]
        about = {"rows": manifest["rows"], "sources": sources, "formats": formats, "template": self.template}
        if self.tools == "text" and not counts[Remark(remarks.TOOLS)]:
            yield "data.tools has no effect: no row has definitions, calls or results of tools"
        yield from remarks.of_rows(counts, **about, has_own=bool(self.spec.own_template.text))

    def check_refusals(self, refusals: Problems) -> None:
        """ConfigError where all rows are refused for one reason: the template's."""
        whats = {problem.what for problem in refusals.kinds.values()}
        if len(whats) == 1:
            (whole,) = whats
            what = whole.removesuffix(f"; {AS_TEXT}")
            remedy = f"fix the template ({self.template.name}), or name another: --set data.template=alpaca"
            raise ConfigError(
                f"data.template: no row can be rendered, all {refusals.count} for one reason: {what}",
                hint=remedy if what == whole else AS_TEXT,
            )


def check_syntax(template: ChatTemplate) -> None:
    """ConfigError with the line where a template is no Jinja."""
    from jinja2.exceptions import TemplateSyntaxError

    try:
        chat_template.render(template.text, [], name=template.name, given={})
    except chat_template.Refused as error:  # it need not render a conversation without turns
        wrong = error.__cause__
        if isinstance(wrong, TemplateSyntaxError):
            raise ConfigError(
                f"data.template: {template.name}, line {wrong.lineno}: {wrong.message}",
                hint="fix the template, or name another: --set data.template=alpaca",
            ) from wrong


class ChunkPreparer:
    """Renders and encodes chunks of rows."""

    def __init__(self, task: Task) -> None:
        self._render = Renderer(
            task.template,
            special_tokens=task.spec.special_tokens,
            end_tokens=task.spec.end_tokens,
            loss=task.loss,
            appends_eos=task.spec.appends_eos,
            date=task.date,
            special_tokens_as=task.special_tokens,
            tools=task.tools,
            reasoning=task.reasoning,
            arguments=task.template_arguments,
        )
        self._encode = Encoder(task.spec, special_tokens=task.special_tokens)

    def __call__(self, rows: list[Row]) -> Result:
        """Tokens and masks of the rows that can be learned, and what is wrong with the others."""
        refused: Refused = []
        lines: list[int] = []
        lengths: list[int] = []
        ids: list[int] = []
        ranges: list[tuple[int, int]] = []
        special: Counter[str] = Counter()
        remarks: Counter[Remark] = Counter()
        roles: list[int] = []
        conversations = 0
        for line, sample in rows:
            try:
                documents = [(rendering, *self._encode(rendering)) for rendering in self._render.documents(sample)]
            except RowError as error:
                refused.append((line, str(error)))
                continue
            if not all(row_ranges for _, _, row_ranges in documents):
                refused.append((line, NOTHING_LEARNED))
                continue
            conversations += isinstance(sample, Conversation) * len(documents)
            roles += [FIRST] + [LATER] * (len(documents) - 1)
            for rendering, row_ids, row_ranges in documents:
                remarks.update(rendering.remarks)
                special.update(rendering.text[first:last] for first, last in rendering.special_texts)
                ranges += [(len(ids) + first, len(ids) + last) for first, last in row_ranges]
                ids += row_ids
                lengths.append(len(row_ids))
                lines.append(0 if line is None else line)
        made = _chunk(
            ids, ranges=ranges, lengths=lengths, lines=lines, roles=roles, conversations=conversations, special=special
        )
        return replace(made, remarks=remarks), refused


def _chunk(
    ids: list[int],
    *,
    ranges: list[tuple[int, int]],
    lengths: list[int],
    lines: list[int],
    roles: list[int],
    conversations: int,
    special: Counter[str],
) -> Chunk:
    supervised = np.zeros(len(ids), dtype=np.uint8)
    for first, last in ranges:
        supervised[first:last] = 1
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, dtype=np.int64)
    learned = np.add.reduceat(supervised, starts, dtype=np.int32) if lengths else np.zeros(0, dtype=np.int32)
    return Chunk(
        ids=np.array(ids, dtype=np.int32),
        supervised=supervised,
        lengths=np.array(lengths, dtype=np.int32),
        learned=learned,
        lines=np.array(lines, dtype=np.int64),
        roles=np.array(roles, dtype=np.uint8),
        conversations=conversations,
        special_texts=special,
    )
