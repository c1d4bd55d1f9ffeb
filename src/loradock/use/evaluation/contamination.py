"""Rows that were trained on: the question, or its stem, stands in the training rows; of text that asks nothing, all.

Texts are compared as words: compatibility forms folded (NFKC), lower case, letters and digits alone. The stem of a
question is what is left without the instruction before it and the answers to choose from after it, so that a question
is found whose answers stand in another order, or that another prompt is built around.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from loradock.config.sections.data import SourceConfig
from loradock.data.formats.base import Completion, Conversation, Sample
from loradock.data.sources import samples
from loradock.errors import Problem
from loradock.use.evaluation.items import Item

INSTRUCTION = re.compile(r"\A\s*(?:Please|Choose|Answer)\b[^\n:?]*:\s*", re.IGNORECASE)
CHOICES = re.compile(
    r"\s*(?:\b(?:answer|solution|ending|option|choice)\s?1\b|\(?\bA[).:]\s|Answer format:)", re.IGNORECASE
)
WORDS = re.compile(r"[^\W_]+")
FIRST_WORDS = 5
CONTAINED_WORDS = 8
"""A stem of at least these is looked for inside training texts too; shorter ones stand in too many by chance."""


Readings = tuple[str, ...]
"""The ways in which one training text may be asked again, the text itself first."""


def normalised(text: str) -> str:
    """The words of a text with one space between them; a text without words as it is."""
    return _words(text) or " ".join(text.split())


def _words(text: str) -> str:
    return " ".join(WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def stem(question: str) -> str:
    """The normalised question without instruction and answers; all of it where nothing else is left."""
    beginning = INSTRUCTION.sub("", question, count=1)
    end = CHOICES.search(beginning)
    return _words(beginning[: end.start()] if end else beginning) or normalised(question)


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """Rows (numbers, ascending) whose whole question, or stem alone, was trained on; `trained`: texts looked at."""

    questions: tuple[int, ...]
    stems: tuple[int, ...]
    trained: int

    @property
    def rows(self) -> frozenset[int]:
        """All of them."""
        return frozenset((*self.questions, *self.stems))


@dataclass
class _Sought:
    """What is looked for: rows by question, by stem, and by the first words of a stem."""

    questions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stems: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list))


def find(items: Sequence[Item], trained: Iterable[Readings]) -> Contamination:
    """Which rows stand in the training texts, each a user's turn or a raw text."""
    sought = _sought(items)
    by_question: set[int] = set()
    by_stem: set[int] = set()
    count = 0
    for readings in trained:
        count += 1
        for text in readings:
            text_normalised = normalised(text)
            by_question.update(sought.questions.get(text_normalised, ()))
            by_stem.update(sought.stems.get(stem(text), ()))
            for question in _contained(text_normalised.split(), sought):
                by_stem.update(sought.stems[question])
    return Contamination(
        questions=tuple(sorted(by_question)), stems=tuple(sorted(by_stem - by_question)), trained=count
    )


def _sought(items: Sequence[Item]) -> _Sought:
    sought = _Sought()
    for item in items:
        question = item.question if item.question.strip() else _whole(item.sample)
        stem_text = stem(question) if item.question.strip() else normalised(question)
        sought.questions[normalised(question)].append(item.row)
        sought.stems[stem_text].append(item.row)
        fields = stem_text.split()
        if len(fields) >= CONTAINED_WORDS and len(sought.stems[stem_text]) == 1:
            sought.begun[tuple(fields[:FIRST_WORDS])].append(stem_text)
    return sought


def _contained(tokens: Sequence[str], sought: _Sought) -> Iterator[str]:
    """The stems that stand in a text as consecutive words."""
    for place in range(len(tokens) - CONTAINED_WORDS + 1):
        for question in sought.begun.get(tuple(tokens[place : place + FIRST_WORDS]), ()):
            fields = question.split()
            if tokens[place : place + len(fields)] == fields:
                yield question


def texts_of(sources: Iterable[SourceConfig]) -> Iterator[Readings]:
    """What users say in training rows, and raw texts; rows that cannot be read are left out, as training refused them.

    A user's turn can be asked again alone, or with all that was said before it; a prompt, or the whole text.

    Raises InputMissing and what else `samples` raises.
    """
    for index, source in enumerate(sources):
        for _, sample in samples(source, index=index):
            if not isinstance(sample, Problem):
                yield from _asked(sample)


def _asked(sample: Sample) -> Iterator[Readings]:
    row = sample.answered
    if row is None:
        yield (sample.turns[0].content,)
    elif isinstance(row, Completion):
        yield (_whole(row), row.prompt) if row.prompt.strip() else (row.completion,)
    elif not any(message.content.strip() for message in row.messages if message.role == "user"):
        yield (_whole(row),)
    else:
        texts: list[str] = []
        for turn in row.messages:
            texts += [turn.content] if turn.role != "system" else []
            if turn.role == "user":
                yield (turn.content, "\n".join(texts)) if len(texts) > 1 else (turn.content,)


def _whole(sample: Conversation | Completion) -> str:
    """All text of a row."""
    if isinstance(sample, Completion):
        return sample.prompt + sample.completion
    return "\n".join(message.content for message in sample.messages)
