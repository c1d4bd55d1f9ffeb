"""The type of a task: which files hold it, what its answers are called, and how a row of its layout is read.

The layout is that of LLM-Adapters (Hu et al. 2023, arXiv 2304.01933): a JSON list of rows with `instruction`, whose
last line is `Answer format: a/b/c`, `input` (empty), `output` and `answer`, the word that is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from loradock.config.sections.data import SourceConfig
from loradock.data.formats import named
from loradock.data.formats.base import Conversation, convert_row
from loradock.data.formats.fields import RowError
from loradock.data.problems import Problems
from loradock.data.read import digest, place_of, read, shown_files
from loradock.data.remedies import mending
from loradock.errors import InputMissing, Problem, shown_place
from loradock.use.evaluation.items import Item, Items, limited, listed, said

STATEMENT = "the correct answer is {}"
FIELDS = ("instruction", "input", "output")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A multiple-choice task. `folder`: what LLM-Adapters calls it; `words`: its answers, at most these."""

    name: str
    folder: str
    words: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What an answer is found by in a text: the first of these words that stands there."""
        return re.compile("|".join(self.words))

    def extract(self, text: str) -> str:
        """The first answer that a text names; empty where it names none. As LLM-Adapters' scorer: case matters."""
        match = self.pattern.search(text)
        return match[0] if match else ""

    def file_in(self, folder: Path) -> Path:
        """This task's file in a folder. InputMissing where there is none, or several that could be it."""
        names = dict.fromkeys((self.name, self.folder))
        tried = [folder / part for name in names for part in (f"{name}.json", f"{name}/test.json")]
        files = [file for file in tried if file.is_file()]
        files = files or sorted(file for name in names for file in folder.glob(f"{name}_test*.json"))
        if len(files) == 1 or (files and files[0] in tried):
            return files[0]
        what = f"{folder} holds several files of task {self.name}: {', '.join(file.name for file in files)}"
        if not files:
            expected = ", ".join(str(file.relative_to(folder)) for file in tried)
            what = f"{folder} holds no file of task {self.name}: {expected}, {self.name}_test*.json"
        raise InputMissing(what, hint=f"--task {self.name}=FILE")

    def read(self, file: Path, *, limit: int | None = None) -> Items:
        """The rows of a file. DataError with every row that is not of the layout or has no answer."""
        source = SourceConfig(path=str(file), split="")
        starts: list[int] = []
        files, problems = shown_files(source), Problems()
        items: list[Item] = []
        for record in read(source, starts=starts):
            name, line = place_of(files, starts, record.line)
            try:
                if record.row is None:
                    raise RowError(record.problem or "it cannot be read", hint=mending(name, record.problem))
                items.append(self.item(record.row, row=len(items), place=shown_place(name, line)))
            except RowError as error:
                problems.add(Problem(what=str(error), file=name, line=line, hint=error.hint))
        problems.check(files=files)
        return Items(
            name=self.name, file=str(file), sha256=digest(source), of_file=len(items), items=limited(items, limit)
        )

    def item(self, given: Mapping[str, Any], *, row: int, place: str) -> Item:
        """A row of the layout; RowError says what it lacks."""
        answer = given.get("answer")
        if not isinstance(answer, str) or not answer.strip():
            raise RowError(f"the row has no answer: column 'answer' of task {self.name} holds one of {self._shown}")
        answer = answer.strip()
        output = given.get("output") or STATEMENT.format(answer)
        fields = {field: given[field] for field in FIELDS if field in given}
        sample = convert_row(named("alpaca"), {}, fields | {"output": output})
        assert isinstance(sample, Conversation)
        candidates = listed(sample.messages[-2].content)
        if not candidates:
            raise RowError("the instruction does not end with 'Answer format: ...', which lists the answers")
        if unknown := [candidate for candidate in candidates if not self.pattern.fullmatch(candidate)]:
            raise RowError(f"{unknown[0]!r} is not an answer of task {self.name}: {self._shown}")
        if answer not in candidates:
            raise RowError(f"answer {answer!r} is none of {', '.join(candidates)}")
        texts = tuple(said(output, answer, candidate) or STATEMENT.format(candidate) for candidate in candidates)
        return Item(sample=sample, answer=answer, candidates=candidates, texts=texts, row=row, place=place)

    @property
    def _shown(self) -> str:
        return ", ".join(self.words)
