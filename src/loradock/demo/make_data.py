"""Write the demo's data set: `python -m loradock.demo.make_data [--output DIR]` makes train.jsonl and heldout.jsonl.

Alpaca rows, pure Python and one seed: the files come out byte-equal on every machine. Every skill and every phrasing
has the same share. No list is used twice, so no held-out input was trained on; `make_base` keeps the held-out lists
out of the base's corpus too, in any order of their nouns.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from loradock.demo.corpus import QUESTIONS, SKILLS, draw_list

HERE = Path(__file__).parent
SEED = 20
TRAIN_ROWS_PER_QUESTION = 150
HELDOUT_ROWS_PER_QUESTION = 5


def make_rows(*, seed: int = SEED) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The train and the held-out rows (`instruction`, `input`, `output`), without a common set of nouns.

    The train rows are shuffled; the held-out rows stay in the order of their skills.
    """
    rng = random.Random(seed)
    rows_made: set[frozenset[str]] = set()
    train, heldout = [], []
    for rows, per_question in ((heldout, HELDOUT_ROWS_PER_QUESTION), (train, TRAIN_ROWS_PER_QUESTION)):
        for skill, questions in QUESTIONS.items():
            for question in questions * per_question:
                nouns = draw_list(rng, skill)
                while frozenset(nouns) in rows_made:
                    nouns = draw_list(rng, skill)
                rows_made.add(frozenset(nouns))
                rows.append({"instruction": question, "input": ", ".join(nouns), "output": SKILLS[skill](nouns)})
    rng.shuffle(train)
    return train, heldout


def write_data(directory: Path) -> None:
    """Write train.jsonl and heldout.jsonl into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train.jsonl", "heldout.jsonl"), make_rows(), strict=True):
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write the demo's train.jsonl and heldout.jsonl.")
    parser.add_argument("--output", type=Path, default=HERE, help="directory to write into")
    write_data(parser.parse_args().output)


if __name__ == "__main__":
    main()
