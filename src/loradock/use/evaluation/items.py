"""Rows to evaluate on: what is asked, the right answer, and the answers to choose from, each with its place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from loradock.config.sections.data import Reading, SourceConfig
from loradock.data.columns import Contents
from loradock.data.formats.base import Completion, Conversation, Judgement, Message, PreferencePair, Sample, ToolCall
from loradock.data.problems import Problems
from loradock.data.read import digest, on_disk, place_of, shown_files
from loradock.data.remedies import command_on, in_the_file
from loradock.data.sources import read_as, samples
from loradock.errors import DataError, Problem, shown_place
from loradock.text.amounts import counted

ANSWER_FORMAT = re.compile(r"Answer format:\s*(\S[^\n]*)\s*$")
NO_CALL = "no call"
FEWEST, MOST = 2, 26
"""Answers of a file that can be candidates where no row names its own."""

Needs = Literal["candidates", "prompts", "rows", "calls"]
"""What a metric needs of a row."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A row: `sample` with its right answer; `answer` is how that is written where answers are compared.

    `candidates` are the answers to choose from, `texts` what the model would say for each; empty where there are none.
    """

    row: int
    place: str
    sample: Conversation | Completion
    answer: str
    candidates: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """All that is asked: the turns before the answer, or the prompt."""
        if isinstance(self.sample, Completion):
            return self.sample.prompt
        return "\n".join(message.content for message in self.sample.messages[:-1] if message.role != "system")

    @property
    def key(self) -> str:
        """A digest (16 hex) of all that a score depends on."""
        turns = [(turn.role, turn.said) for turn in self.sample.turns]
        tools = [self.sample.tools] if isinstance(self.sample, Conversation) and self.sample.tools else []
        parts = [turns, self.answer, self.candidates, self.texts, *tools]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are the right answer; empty where it is a text."""
        return () if isinstance(self.sample, Completion) else self.sample.messages[-1].calls

    def saying(self, text: str) -> Conversation | Completion:
        """The row with another answer."""
        if isinstance(self.sample, Completion):
            return replace(self.sample, completion=text)
        return replace(self.sample, messages=(*self.sample.messages[:-1], Message("assistant", text)))


@dataclass(frozen=True, kw_only=True)
class Items:
    """The rows of a file: `name` heads its results; `sha256` is that of the file; `of_file`: rows that the file has.

    `note`: what to say of rows that were left out.
    """

    name: str
    file: str
    sha256: str
    of_file: int
    items: tuple[Item, ...]
    note: str | None = None


def listed(question: str) -> tuple[str, ...]:
    """The answers that a question names in its last line (`Answer format: true/false`); empty where it names none."""
    match = ANSWER_FORMAT.search(question.rstrip())
    return tuple(candidate.strip() for candidate in match[1].split("/") if candidate.strip()) if match else ()


def _without_options(hint: str | None, file: str) -> str | None:
    """A hint that names options of training, by the command that does the same to the file; None where none does."""
    change = in_the_file(hint)
    return f"{(hint or '').partition('--set')[0]}{command_on(file, change)}" if change else None


def limited(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """The first rows."""
    return tuple(items if limit is None else items[:limit])


def of_data(
    file: Path,
    *,
    needs: Needs,
    limit: int | None = None,
    readings: Sequence[Reading] = (),
) -> Items:
    """The user's own rows, in any format that training reads; the last turn (or the completion) is the right answer.

    `needs`: a loss takes any `rows`, an answer needs a prompt, `calls` a row with tools, a choice its candidates: those
    that the row's question lists, else all the answers of the file, where those are few. `readings`: how training read
    its columns. DataError with every row that cannot be read, has no answer or not what is needed.
    """
    source = read_as(SourceConfig(path=str(file), split=""), readings)
    contents, problems = Contents(), Problems()
    files = shown_files(source)
    items: list[Item] = []
    labelled = Labelled()
    undecided = 0
    for line, sample in samples(source, contents=contents):
        name, number = place_of(files, contents.starts, line)
        if isinstance(sample, Problem):
            problems.add(replace(sample, hint=_without_options(sample.hint, on_disk(source, name))))
        elif needs != "calls" and isinstance(sample, Judgement) and not sample.is_desirable:
            labelled.undesirable.append(sample)
        elif needs == "candidates" and isinstance(sample, PreferencePair) and _is_undecided(sample):
            undecided += 1
        elif what := _without_calls(sample) if needs == "calls" else _unfit(sample, needs=needs):
            problems.add(Problem(what=what, file=name, line=number))
        else:
            item = _item(sample, row=len(items), place=shown_place(name, number))
            item = item if needs == "candidates" else replace(item, candidates=(), texts=())
            items.append(replace(item, answer=calls_shown(item.calls)) if needs == "calls" else item)
    problems.check(files=files)
    count, notes = len(items) + len(labelled.undesirable) + undecided, list[str]()
    if undecided:
        if not items:
            raise DataError(
                f"all pairs of {file} have two equal answers", hint="--metric exact compares the chosen one"
            )
        notes.append(f"left out: {counted(undecided, 'pair')} of equal answers, neither of which is preferred")
    if labelled.undesirable:
        items, note = labelled.judged(items, is_choice=needs == "candidates", file=file)
        notes.append(note)
    if needs == "candidates":
        items = _with_candidates(items, file=file)
    return Items(
        name=file.name,
        file=str(file),
        sha256=digest(source),
        of_file=count,
        items=limited(items, limit),
        note="; ".join(notes) or None,
    )


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The answers of a file that are labelled as undesirable: none is a right one, and each is one to choose from."""

    undesirable: list[Judgement] = field(default_factory=list[Judgement])

    def judged(self, items: Sequence[Item], *, is_choice: bool, file: Path) -> tuple[list[Item], str]:
        """The desirable answers; of a choice those that have undesirable ones to the same prompt, as candidates.

        And what to say of the rest. DataError where none is left.
        """
        if not items:
            what = f"no answer of {file} is labelled as desirable: there is nothing right to compare with"
            raise DataError(what, hint="evaluate rows of which some are")
        if not is_choice:
            return list(items), f"{len(self.undesirable):,} answers that are labelled as undesirable are left out"
        by_prompt: dict[str, list[str]] = {}
        for each in self.undesirable:
            by_prompt.setdefault(_prompt_of(each.answer), []).append(each.turns[-1].content)
        chosen = [
            replace(item, candidates=tuple(text.strip() for text in texts), texts=texts)
            for item in items
            if (texts := _different(item, by_prompt.get(_prompt_of(item.sample), ())))
        ]
        if not chosen:
            what = f"no prompt of {file} has a desirable and an undesirable answer: there is nothing to choose from"
            raise DataError(what, hint="--metric loss measures the desirable ones")
        chosen = [replace(item, row=row) for row, item in enumerate(chosen)]
        lone = f"{len(items) - len(chosen):,} that have none are left out"
        return chosen, f"each desirable answer against the undesirable ones to its prompt; {lone}"


def _prompt_of(sample: Conversation | Completion) -> str:
    return json.dumps([(turn.role, turn.said) for turn in sample.turns[:-1]])


def _different(item: Item, others: Sequence[str]) -> tuple[str, ...]:
    """The answer and those that differ from it, each once; nothing where there are none."""
    right = item.sample.turns[-1].content
    texts = {text.strip(): text for text in others if text.strip() != right.strip()}
    return (right, *texts.values()) if texts else ()


def _is_undecided(pair: PreferencePair) -> bool:
    """Whether neither answer is preferred, because both are the same."""
    chosen, rejected = pair.chosen.turns, pair.rejected.turns
    return chosen[:-1] == rejected[:-1] and chosen[-1].content.strip() == rejected[-1].content.strip()


def _unfit(sample: Sample, *, needs: Needs) -> str | None:
    """Why a row is none to evaluate on; None where it is one. A rejected answer is looked at by a choice alone."""
    if needs == "candidates" and isinstance(sample, PreferencePair):
        is_one_turn = sample.chosen.turns[:-1] == sample.rejected.turns[:-1]
        what = "chosen and rejected differ in more than their last turn: one answer is compared with another"
        return None if is_one_turn else what
    row = sample.answered
    if row is None:
        return "pairs for an embedding model have no answer: --retrieval or --sts evaluates those"
    if isinstance(row, Completion):
        is_asked = bool(row.prompt.strip()) or needs == "rows"
        return None if is_asked else "plain text asks nothing: --metric loss is for such rows"
    last = row.messages[-1]
    if last.calls and not last.content.strip():
        return "the answer is a call of a tool: --metric calls compares those"
    if last.role != "assistant" or not last.content.strip():
        return f"the last turn is of role {last.role}: a row to evaluate on ends with the assistant's answer"
    return None


def _without_calls(sample: Sample) -> str | None:
    """Why a row is none to compare calls on; None where it is one."""
    if not isinstance(sample, Conversation) or sample.messages[-1].role != "assistant":
        return "--metric calls is for conversations that end with the assistant's turn"
    if not sample.tools and not any(message.calls for message in sample.messages):
        return "the row has neither tools nor calls: --metric exact, f1 or rouge-l compares what is said"
    return None


def calls_shown(calls: Sequence[ToolCall]) -> str:
    """Calls as people read them, one a line."""
    return "\n".join(call.shown for call in calls) or NO_CALL


def _item(sample: Sample, *, row: int, place: str) -> Item:
    """Of preference data the chosen answer is the right one, and both are its candidates."""
    if isinstance(sample, PreferencePair):
        texts = tuple(each.turns[-1].content for each in (sample.chosen, sample.rejected))
        names = tuple(text.strip() for text in texts)
        return Item(row=row, place=place, sample=sample.chosen, answer=names[0], candidates=names, texts=texts)
    answered = sample.answered
    assert answered is not None
    return Item(row=row, place=place, sample=answered, answer=answered.turns[-1].content.strip())


def said(text: str, answer: str, candidate: str) -> str | None:
    """What a text would say with another answer in the place of its last; None where it does not name its answer."""
    head, separator, tail = text.rpartition(answer)
    return f"{head}{candidate}{tail}" if separator else None


def _with_candidates(items: Sequence[Item], *, file: Path) -> list[Item]:
    of_file = {item.answer: item.sample.turns[-1].content for item in items}
    items_found: list[Item] = []
    problems = Problems()
    for item in items:
        if item.candidates:
            items_found.append(item)
            continue
        names = listed(item.question)
        candidates = (
            _listed(item, names) if names else replace(item, candidates=(*of_file,), texts=(*of_file.values(),))
        )
        if candidates is None:
            what = f"the answer {item.answer!r} is none of those that the question lists: {', '.join(names)}"
            problems.add(Problem(what=what, file=item.place))
        elif not FEWEST <= len(candidates.texts) <= MOST:
            what = f"{file} has {len(of_file):,} different answers, and its questions do not list theirs"
            advice = f"a line such as 'Answer format: yes/no', with {FEWEST} to {MOST} answers"
            raise DataError(what, hint=f"end each question with {advice}, or --metric exact")
        else:
            items_found.append(candidates)
    problems.check(files=[])
    return items_found


def _listed(item: Item, names: tuple[str, ...]) -> Item | None:
    """The row with the answers that its question lists, one of which its own is or ends with (`it is true`)."""
    answer = max((name for name in names if item.answer.endswith(name)), key=len, default=None)
    if answer is None:
        return None
    text = item.sample.turns[-1].content
    return replace(
        item, answer=answer, candidates=names, texts=tuple(said(text, answer, name) or name for name in names)
    )
