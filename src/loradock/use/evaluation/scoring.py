"""Rows to outcomes, batch by batch, journalled: the same command continues what was stopped, with the same results."""

from __future__ import annotations

import glob
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.data.formats.fields import RowError
from loradock.data.problems import Problems
from loradock.errors import DataError, Problem
from loradock.files import foreign_json, regular
from loradock.text.terminal import first_line
from loradock.use.evaluation.items import Items
from loradock.use.evaluation.methods import Method, Work, batches
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.journal import Journal

SHOWN_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The outcomes of all rows in their order, the file that holds them, and what this process computed of them."""

    outcomes: tuple[Outcome, ...]
    file: Path
    computed: int
    seconds: float

    @property
    def rows_per_second(self) -> float | None:
        """None where all was there from before."""
        return self.computed / self.seconds if self.computed and self.seconds else None


def score(
    method: Method,
    items: Items,
    *,
    directory: Path,
    identity: Mapping[str, Any],
    batch_tokens: int,
    progress: Callable[[int], None],
) -> Scored:
    """Evaluate the rows, those left that `directory` does not hold yet.

    `identity`: the model and all settings that outcomes depend on; with the rows it names the file, so that no result
    of another model or setting is taken for this one's. A batch holds the same rows in each attempt. DataError as
    `prepared`; raises what `Journal` raises.
    """
    began = time.monotonic()
    works = prepared(method, items)
    known = {
        **identity,
        "rows": _digest([work.item.key for work in works]),
        "ids": _digest([work.given for work in works]),
        "method": method.name,
        **method.settings,
        "batch_tokens": batch_tokens,
    }
    digest = _digest(sorted(known.items()))
    file = directory / f"{items.name}-{method.name}-{digest[:SHOWN_DIGITS]}.jsonl"
    remove_staged(file)
    if file.is_file():
        return Scored(outcomes=_read(file), file=file, computed=0, seconds=0.0)
    with Journal(file, identity=known, takes=_is_outcome) as journal:
        count_before = len(journal.done)
        for batch in batches(method, works, batch_tokens=batch_tokens):
            if all(_name(work) in journal.done for work in batch):
                continue
            for work, outcome in zip(batch, method.run(batch), strict=True):
                journal.add(_name(work), outcome.as_dict())
            journal.flush()
            progress(len(journal.done))
        lines = [journal.done[_name(work)] for work in works]
        computed = len(lines) - count_before
        journal.finish("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    outcomes = tuple(Outcome.of(line) for line in lines)
    return Scored(outcomes=outcomes, file=file, computed=computed, seconds=time.monotonic() - began)


def remove_staged(file: Path) -> None:
    """Take away what a process that was killed while it put `file` in place left beside it.

    That is what it staged, and, where the file is there, the journal that it was made of.
    """
    for leftover in file.parent.glob(f".{glob.escape(file.name)}.*"):
        if leftover.suffix[1:].isdigit() or file.is_file():
            leftover.unlink(missing_ok=True)


def prepared(method: Method, items: Items) -> list[Work]:
    """Every row's work, in their order. DataError with each row that the template refuses or that is too long."""
    works: list[Work] = []
    problems = Problems()
    for item in items.items:
        try:
            works.append(method.prepare(item))
        except RowError as error:
            problems.add(Problem(what=str(error), file=item.place))
    most = getattr(method.opened.model.config.get_text_config(), "max_position_embeddings", None)
    for problem in too_long(works, most) if most else ():
        problems.add(problem)
    problems.check(files=[])
    return works


def too_long(works: Sequence[Work], most: int) -> Iterator[Problem]:
    """The rows that a model of `most` positions cannot answer, and how long answers may be that it can give to all."""
    rows = [work for work in works if work.longest > most]
    lengths = [most - work.longest + work.generated for work in rows if work.generated]
    room = min((length for length in lengths if length > 0), default=0)
    for work in rows:
        given = work.longest - work.generated
        if not work.generated:
            yield Problem(
                what=f"the row has {given:,} tokens with its answer, and the model takes {most:,}", file=work.item.place
            )
        elif given >= most:
            yield Problem(what=f"the prompt has {given:,} tokens, and the model takes {most:,}", file=work.item.place)
        else:
            what = f"the prompt has {given:,} tokens, an answer up to {work.generated:,}, and the model takes {most:,}"
            yield Problem(what=what, file=work.item.place, hint=f"--max-new-tokens {room}")


def _digest(content: object) -> str:
    """sha256 (hex) of what only holds texts, numbers, and lists and dataclasses of them."""
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _name(work: Work) -> str:
    return f"{work.item.row}-{work.item.key}"


def _read(file: Path) -> tuple[Outcome, ...]:
    records: list[Outcome] = []
    for number, line in enumerate(regular.read(file, most_bytes=regular.MOST_LINES_BYTES).splitlines(), start=1):
        try:
            records.append(Outcome.of(foreign_json.loads(line)))
        except ValueError as error:
            problem = Problem(what=first_line(error), file=str(file), line=number)
            what = "what an evaluation kept was changed"
            raise DataError(what, hint=f"rm {file}; the same command makes it again", problems=[problem]) from error
    return tuple(records)


def _is_outcome(line: object) -> bool:
    try:
        Outcome.of(line)
    except ValueError:
        return False
    return True
