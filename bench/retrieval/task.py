"""A small retrieval task from science questions: the right option is a question's passage, the others hard negatives.

Trained on ARC and OpenBookQA training questions; tested on held-out OpenBookQA and ARC-Easy questions, each against all
options of its test set. Training questions and options' texts that are also tested are left out of training.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

SPLIT = re.compile(r"\s*Answer\d: ")
TRAIN = "commonsense_5k.json"
TESTS = {"openbookqa": "openbookqa_test_500.json", "arc-easy": "arc-easy_test_500.json"}
INSTRUCTION = "Given a science question, find its answer"
HELD_OUT_ROWS = 200


@dataclass(frozen=True)
class Question:
    """A question, its right option, and the others."""

    text: str
    answer: str
    others: tuple[str, ...]


def questions(file: Path) -> list[Question]:
    """The science questions of a file in the LLM-Adapters layout; rows of another kind are none."""
    found: list[Question] = []
    for row in json.loads(file.read_text("utf-8")):
        head, _, rest = row["instruction"].partition(": ")
        if not head.startswith("Please choose the correct answer"):
            continue
        text, *options = SPLIT.split(rest.split("\n\nAnswer format")[0])
        right = int(row["answer"].removeprefix("answer")) - 1
        others = [option.strip() for place, option in enumerate(options) if place != right]
        found.append(Question(text.strip(), options[right].strip(), tuple(dict.fromkeys(others))))
    return found


def write(data: Path, folder: Path) -> dict[str, int]:
    """The training pairs, the rows to answer from, and a BEIR directory for each test set; what was counted."""
    folder.mkdir(parents=True, exist_ok=True)
    tests = {name: questions(data / file) for name, file in TESTS.items()}
    tested = {question.text for found in tests.values() for question in found}
    whole = questions(data / TRAIN)
    trained = [each for each in whole if each.text not in tested and each.answer not in each.others]
    lines = [
        {"query": [INSTRUCTION, each.text], "pos": [["", each.answer]], "neg": [["", other] for other in each.others]}
        for each in trained
    ]
    write_lines(folder / "pairs.jsonl", lines)
    rows = [row for row in json.loads((data / TRAIN).read_text("utf-8")) if row["answer"] in ("true", "false")]
    alpaca = [{"instruction": row["instruction"], "input": "", "output": row["output"]} for row in rows]
    write_lines(folder / "rows.jsonl", alpaca[HELD_OUT_ROWS:])
    write_lines(folder / "held_out.jsonl", alpaca[:HELD_OUT_ROWS])
    counts = {"science questions": len(whole), "trained": len(trained), "overlapping": len(whole) - len(trained)}
    for name, found in tests.items():
        counts[f"{name} queries"], counts[f"{name} passages"] = len(found), write_test(folder / name, found)
    return counts


def write_test(folder: Path, found: list[Question]) -> int:
    """A directory in BEIR's layout; returns how many passages it has."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages = {text: f"p{n}" for n, text in enumerate(dict.fromkeys(o for q in found for o in (q.answer, *q.others)))}
    write_lines(folder / "corpus.jsonl", [{"_id": name, "title": "", "text": text} for text, name in passages.items()])
    write_lines(folder / "queries.jsonl", [{"_id": f"q{n}", "text": each.text} for n, each in enumerate(found)])
    qrels = [f"q{n}\t{passages[each.answer]}\t1" for n, each in enumerate(found)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n", "utf-8")
    return len(passages)


def write_lines(file: Path, rows: list[dict[str, object]]) -> None:
    """JSONL."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
