"""What is told of rows that are trained otherwise than their author may expect: counted row by row, said once a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from loradock.config.sections.data import SourceConfig
from loradock.data.formats import Format, named
from loradock.data.formats.base import Message
from loradock.data.spans import Remark
from loradock.data.special import SpecialTokens
from loradock.data.templates import CONTROL, ChatTemplate
from loradock.data.turns import Turn

ALTERED, UNFOLLOWED, UNEQUAL = "altered", "prompt not followed", "unequal openings"
CUT = "thought cut"
TOOLS = "tools as text"
PROMPTED, WRITTEN, ENDED = "prompt without template", "written by a template", "own end"
SENTENCES = {
    ALTERED: "the template ({template}) leaves out or changes a part of what the messages say: `loradock data show` "
    "shows what is trained",
    CUT: "the template ({template}) leaves out the thought of an answer, which is then learned without it: "
    "--set data.reasoning=all_turns learns each with its thought, in a document of its own; --set data.loss=completion "
    "learns the last answer of each row alone; --set data.reasoning=drop learns no thoughts",
    UNFOLLOWED: "no answer begins where the generation prompt of the template ({template}) ends: it writes {detail}, "
    "the row does not, and `chat`, `generate` and every server will write it before each answer. "
    "--set data.template=FILE.jinja names a template whose prompt is without it, or whose rows have it",
    UNEQUAL: "the template ({template}) writes {detail} before the last answer and not before earlier ones, and both "
    "are learned, while each answer that a model is asked for is the last one: --set data.loss=completion learns the "
    "last answer of each row alone",
    PROMPTED: "prompt and completion are text, trained without the model's own chat template, which `chat` and every "
    "server will write around a question. {detail}",
}
"""Warnings."""
NOTES = {
    WRITTEN: "the text is one that a chat template wrote: its control tokens are trained as such, and whole texts are "
    "learned, questions too; rows of messages learn answers alone (as plain text: --set data.special_tokens=as_text)",
    TOOLS: "definitions, calls and results of tools are written as text (data.tools text)",
    ENDED: "the answer ends with {detail} of its own: one end is trained, which the template writes",
}
SHOWN_TOKENS = 5


def of_source(counts: Counter[Remark], index: int) -> Counter[Remark]:
    """Those of a source's rows; where the remedy lies in the source, they are about it."""
    return Counter(
        {each._replace(detail=str(index)) if each.name == PROMPTED else each: counts[each] for each in counts}
    )


def of_rows(
    counts: Counter[Remark],
    *,
    rows: int,
    sources: Sequence[SourceConfig],
    formats: Sequence[str],
    template: ChatTemplate,
    has_own: bool,
) -> Iterator[str]:
    """The sentences about the rows of an entry; `formats`: of its sources. `has_own`: the tokenizer has a template."""
    for remark, count in sorted(counts.items()):
        given = {"template": template.name, "detail": json.dumps(remark.detail, ensure_ascii=False)}
        if remark.name == PROMPTED:
            if not has_own:
                continue
            index = int(remark.detail)
            given["detail"] = as_turns(sources[index], named(formats[index]), index=index)
        is_warning = remark.name in SENTENCES
        told = (SENTENCES if is_warning else NOTES)[remark.name].format(**given)
        yield f"{'warning: ' if is_warning else ''}in {count:,} of {rows:,} rows {told}"


def as_turns(source: SourceConfig, format: Format, *, index: int) -> str:
    """What to type so that the chat template is written around the texts of a source."""
    if not format.as_turns:
        return "With it: rows of turns (docs/data.md)"
    fields = {own: source.fields.get(name, name) for name, own in format.as_turns.items()}
    turned = named(format.turned) if format.turned else format
    others = {name: column for name, column in source.fields.items() if name not in format.as_turns}
    fields |= {name: column for name, column in others.items() if name in turned.fields}
    mapped = ", ".join(f"{name}: {column}" for name, column in fields.items())
    key = f"data.sources.{index}"
    return f"With it: --set {key}.format={turned.name} --set '{key}.fields={{{mapped}}}'"


def of_template(template: ChatTemplate, *, vocabulary: str) -> Iterator[str]:
    """The control tokens of a named template that the vocabulary (the tokenizer's JSON) lacks."""
    written = CONTROL.get(template.name, ())
    if lacking := [token for token in written if json.dumps(token) not in vocabulary]:
        yield (
            f"warning: the template {template.name} writes {', '.join(lacking)}, and the vocabulary has no such "
            "tokens: they are trained as plain text (--set data.template=alpaca needs none)"
        )


def of_arguments(arguments: Iterable[str], *, template: ChatTemplate) -> Iterator[str]:
    """The arguments of data.template_arguments whose names the template nowhere has: a slip changes what is learned."""
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template.text):
            key = f"data.template_arguments.{name}"
            yield f"warning: {key} has no effect: the template ({template.name}) has no such name"


def of_special_texts(counts: dict[str, int], *, special_tokens: SpecialTokens) -> Iterator[str]:
    """Special tokens whose text contents hold; a warning only where nobody said how to take them."""
    if not counts:
        return
    named = ", ".join(f"{token} {count:,}x" for token, count in Counter(counts).most_common(SHOWN_TOKENS))
    what = f"contents hold the text of special tokens ({named}): trained as"
    if special_tokens == "auto":
        choice = "--set data.special_tokens=as_control, or as_text to leave it so"
        yield f"warning: {what} text, not as control tokens; {choice}"
    else:
        how = "text" if special_tokens == "as_text" else "control tokens"
        yield f"{what} {how} (data.special_tokens {special_tokens})"


def of_turns(text: str, *, messages: Sequence[Message], found: Sequence[Turn]) -> list[Remark]:
    """What is to be told of a conversation and of its learned turns."""
    found_remarks: list[Remark] = []
    if any(message.content.strip() not in text for message in messages):
        found_remarks.append(Remark(ALTERED))
    begun = [(turn.unfollowed, turn.opening) for turn in found if turn.opening is not None]
    if found and found[-1].unfollowed.strip():
        found_remarks.append(Remark(UNFOLLOWED, found[-1].unfollowed))
    elif len(set(begun)) > 1:
        found_remarks.append(Remark(UNEQUAL, max(unfollowed for unfollowed, _ in begun) + (begun[-1][1] or "")))
    return found_remarks
