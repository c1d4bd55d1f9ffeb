"""The rows that every arm trains on: made as text, tokenised by our preparation, given to the peers in our order.

A word is a token (`models.words`), so that lengths are exact. Row sets:
`commonsense`: lengths of 5 000 real rows (commonsense_lengths.json), mean 155 tokens, 17 of them learned;
`instructions`: lengths as bench/prepare draws them: mean about 166 tokens, two thirds learned;
`fixed-N`: every row has N tokens, half of them learned.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.train.models import words

FIXED = "fixed-"
SETS = ("commonsense", "instructions", "fixed-512", "fixed-1024", "fixed-2048")
LONGEST = 2048
TOKENS_A_WORD, TEMPLATE_TOKENS = 1.3, 11
"""Of the rows of bench/prepare, with its tokenizer and template."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows in the order in which they are trained.

    `ids` int32 [tokens], `supervised` bool [tokens], `offsets` int64 [rows + 1]: row i is [offsets[i], offsets[i + 1]).
    """

    ids: np.ndarray[Any, Any]
    supervised: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]

    @classmethod
    def load(cls, path: Path) -> Rows:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            return cls(ids=arrays["ids"], supervised=arrays["supervised"], offsets=arrays["offsets"])

    def save(self, path: Path) -> None:
        """Write to an .npz file."""
        np.savez(path, ids=self.ids, supervised=self.supervised, offsets=self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """Tokens of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def examples(self) -> dict[str, list[list[int]]]:
        """Columns `input_ids` and `labels` (-100 where nothing is learned), as trainers take them."""
        labels = np.where(self.supervised, self.ids, -100)
        cuts = self.offsets[1:-1]
        return {
            "input_ids": [part.tolist() for part in np.split(self.ids, cuts)],
            "labels": [part.tolist() for part in np.split(labels, cuts)],
        }


def lengths(name: str, *, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """(prompt, completion) tokens of `count` rows of a set; the completion's include its end token."""
    rng = random.Random(f"{name} {seed}")
    if name.startswith(FIXED):
        whole = int(name.removeprefix(FIXED))
        return [(whole - whole // 2, whole // 2)] * count
    if name == "commonsense":
        content = json.loads(Path(__file__).with_name("commonsense_lengths.json").read_text(encoding="utf-8"))
        weights = [row[2] for row in content["rows"]]
        return [(row[0], row[1]) for row in rng.choices(content["rows"], weights=weights, k=count)]
    drawn: list[tuple[int, int]] = []
    for _ in range(count):
        asked = rng.randint(8, 30) + rng.choice([0, 0, rng.randint(10, 80)])
        answer = int(rng.lognormvariate(4.2, 0.7)) + 1
        prompt = TEMPLATE_TOKENS + round(asked * TOKENS_A_WORD)
        drawn.append((prompt, min(LONGEST - prompt, 1 + round(answer * TOKENS_A_WORD))))
    return drawn


def write(path: Path, *, name: str, count: int, vocabulary: list[str], seed: int = 0) -> None:
    """Write the rows of a set as JSONL of `prompt` and `completion`; words are drawn with frequencies of 1 / rank."""
    rng = np.random.default_rng([seed, count])
    with path.open("w", encoding="utf-8") as file:
        for prompt, completion in lengths(name, count=count, seed=seed):
            ranks = np.exp(rng.random(prompt + completion - 1) * np.log(len(vocabulary))).astype(np.int64)
            drawn = [vocabulary[int(rank) - 1] for rank in ranks]
            row = {"prompt": " ".join(drawn[:prompt]) + " ", "completion": " ".join(drawn[prompt:])}
            file.write(json.dumps(row) + "\n")


def prepared(path: Path, *, model: Path, cache: Path, steps: int, samples: int, seed: int) -> tuple[Rows, list[int]]:
    """The rows as our preparation makes them, in the order in which our steps see them; and which lines they are."""
    from transformers import AutoTokenizer

    from loradock.config.sections.data import DataConfig, SourceConfig
    from loradock.data.prepare import prepare
    from loradock.data.row_steps import row_steps
    from loradock.data.select import fit
    from loradock.data.steps import BatchShape

    data = DataConfig(sources=(SourceConfig(path=str(path), format="prompt-completion"),))
    ready = prepare(data, tokenizer=AutoTokenizer.from_pretrained(model), cache_dir=cache)
    fitted = fit(ready, rows=np.arange(ready.rows), max_length=LONGEST)
    shape = BatchShape(micro_batch=samples, packing=False, max_length=LONGEST)
    order = row_steps(ready, fitted=fitted, global_batch=samples, shape=shape, seed=seed, total_steps=steps)
    numbers = [int(row) for step in range(steps) for row in order[step].batches["rows"].row_ids]
    pairs = [ready.row(number) for number in numbers]
    rows = Rows(
        ids=np.concatenate([ids for ids, _ in pairs]),
        supervised=np.concatenate([mask for _, mask in pairs]),
        offsets=np.cumsum([0, *(len(ids) for ids, _ in pairs)]),
    )
    return rows, numbers


def make(name: str, *, model: Path, folder: Path, steps: int, samples: int, seed: int) -> Path:
    """A directory with `rows.jsonl` (for us), `ordered.jsonl` and `rows.npz` (in our order, for the peers)."""
    target = folder / f"{name}-{model.name}-{steps}x{samples}-seed{seed}"
    if (target / "rows.npz").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    write(target / "rows.jsonl", name=name, count=steps * samples, vocabulary=words(model))
    cache = target / "cache"
    rows, numbers = prepared(target / "rows.jsonl", model=model, cache=cache, steps=steps, samples=samples, seed=seed)
    texts = (target / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (target / "ordered.jsonl").write_text("".join(texts[number] for number in numbers), encoding="utf-8")
    rows.save(target / "rows.npz")
    return target
