"""A retrieval data set in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv (Thakur et al. 2021)."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from loradock.data.problems import Problems
from loradock.data.rows import Row, Rows
from loradock.errors import DataError, InputMissing, Problem
from loradock.files import regular

CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
COLUMNS = ("query-id", "corpus-id", "score")


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Queries that have relevant passages, and all passages; `gains`: by query, what passages are worth, by place.

    `notes` say what was left out.
    """

    queries: list[str]
    passages: list[str]
    gains: list[dict[int, float]]
    notes: list[str] = field(default_factory=list[str])


def read(folder: Path, *, split: str = "test") -> Retrieval:
    """The data set in a folder. InputMissing for a file that is not there, DataError with every bad row of a file."""
    qrels = folder / "qrels" / f"{split}.tsv"
    for file in (folder / CORPUS, folder / QUERIES, qrels):
        if not file.is_file():
            hint = f"a folder in BEIR's layout holds {CORPUS}, {QUERIES} and qrels/{split}.tsv"
            raise InputMissing(f"{file} does not exist", hint=hint)
    passages, empty = _texts(folder / CORPUS, may_be_empty=True)
    queries, _ = _texts(folder / QUERIES, may_be_empty=False)
    if not passages:
        raise DataError(f"{folder / CORPUS} holds no passage with a text", hint="its rows are {_id, title, text}")
    places = {name: place for place, name in enumerate(passages)}
    judged = _judgements(qrels, queries=queries, known={*passages, *empty}, corpus=folder / CORPUS)
    relevant = {query: {name: gain for name, gain in of.items() if gain > 0} for query, of in judged.items()}
    positives = {query: of for query, of in relevant.items() if of}
    if not positives:
        raise DataError(f"{qrels} names no relevant passage: there is nothing to measure", hint="scores are above 0")
    # A relevant passage without text cannot be found; it stays in what would be ideal.
    missing = {name: len(passages) + place for place, name in enumerate(empty)}
    notes = []
    if unjudged := len(judged) - len(positives):
        notes.append(f"{unjudged:,} queries are left out: {qrels} names no relevant passage for them")
    if empty:
        notes.append(f"{len(empty):,} passages have neither title nor text, and are never found")
    return Retrieval(
        queries=[queries[name] for name in positives],
        passages=list(passages.values()),
        gains=[{(places | missing)[name]: gain for name, gain in of.items()} for of in positives.values()],
        notes=notes,
    )


def _texts(file: Path, *, may_be_empty: bool) -> tuple[dict[str, str], list[str]]:
    """Texts by id, a title before its text, and the ids of those that are empty."""
    rows = Rows(file)
    texts: dict[str, str] = {}
    empty: list[str] = []
    for row in rows:
        name = row.values.get("_id")
        text = _text(rows, row)
        if not isinstance(name, str) or not name:
            rows.refuse(row.file, row.line, "_id is missing, or not a string")
        elif name in texts or name in empty:
            rows.refuse(row.file, row.line, f"_id {name!r} stands there twice")
        elif text:
            texts[name] = text
        elif text is not None and may_be_empty:
            empty.append(name)
        elif text is not None:
            rows.refuse(row.file, row.line, "text is empty")
    rows.check()
    return texts, empty


def _text(rows: Rows, row: Row) -> str | None:
    title, text = row.values.get("title") or "", row.values.get("text")
    for name, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            rows.refuse(row.file, row.line, f"{name} is missing, or not a string")
            return None
    return f"{title} {text}".strip()


def _judgements(file: Path, *, queries: dict[str, str], known: set[str], corpus: Path) -> dict[str, dict[str, float]]:
    """{query: {passage: score}}."""
    problems = Problems()

    def refuse(line: int, what: str) -> None:
        problems.add(Problem(what=what, file=str(file), line=line))

    judged: dict[str, dict[str, float]] = {}
    with io.TextIOWrapper(regular.opened(file), encoding="utf-8", errors="replace", newline="") as stream:
        reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(reader, [])
        if tuple(header) != COLUMNS:
            what = f"the first line is {' '.join(header)[:60]!r}, not the header"
            raise DataError(f"{file}:1: {what}", hint=f"write it first, with tabs: {' '.join(COLUMNS)}")
        for cells in reader:
            if len(cells) != len(COLUMNS):
                refuse(reader.line_num, f"{len(cells)} columns, not {len(COLUMNS)} with tabs between")
                continue
            query, passage, score = cells
            if query not in queries:
                refuse(reader.line_num, f"query-id {query!r} is not in {QUERIES}")
            elif passage not in known:
                refuse(reader.line_num, f"corpus-id {passage!r} is not in {corpus.name}")
            elif (gain := _number(score)) is None:
                refuse(reader.line_num, f"score {score!r} is not a number")
            else:
                judged.setdefault(query, {})[passage] = gain
    problems.check(files=[str(file)])
    return judged


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
