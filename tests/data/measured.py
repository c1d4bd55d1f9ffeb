"""What the tests of a data set's statistics begin with: rows, a tiny model's facts, and a corpus measured."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from loradock.config.schema import RunConfig
from loradock.data.corpus import prepare_corpus
from loradock.data.samples.rows import RowSamples
from loradock.data.select import UNCUT_TOKENS
from loradock.data.statistics import Statistics, measure
from loradock.data.truncation import AtLength
from loradock.facts import Facts, LinearShape, ModelFacts

MACHINE = Facts(platform="Linux", python="3.11", cpus=1, memory_bytes=1 << 30, in_container=False)
WORDS = "river apple stone cloud lamp table horse green seven window paper salt".split()
Pair = tuple[str, str]


def model(positions: int | None = 4096) -> ModelFacts:
    layers = tuple(LinearShape(name=f"layers.{n}.mlp.up_proj", rows=128, columns=64) for n in range(2))
    return ModelFacts(
        name="tiny",
        architecture="LlamaForCausalLM",
        decoder="LlamaModel",
        layers=2,
        hidden=64,
        vocabulary=500,
        parameters=50_000,
        linears=layers,
        targets=(layers[0].name,),
        unreachable_parameters=0,
        context_length=positions,
    )


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


def pairs(count: int = 60, *, seed: int = 0, longest: int = 60) -> list[Pair]:
    draw = random.Random(seed)
    return [(f"{n}: {words(draw, draw.randint(1, longest))}\n", words(draw, draw.randint(1, 12))) for n in range(count)]


def write(file: Path, rows: Sequence[Pair]) -> Path:
    lines = [json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@dataclass
class Maker:
    folder: Path
    tokenizer: PreTrainedTokenizerFast

    def corpus(self, *files: Path, train: dict[str, Any] | None = None, **data: Any) -> RowSamples:
        settings = {"sources": [{"path": str(file)} for file in files], "cache": str(self.folder / "cache"), **data}
        config = RunConfig.model_validate({"data": settings, "train": {"global_batch": 16, **(train or {})}})
        rows = prepare_corpus(config, tokenizer=self.tokenizer, max_length=UNCUT_TOKENS, facts=MACHINE).rows
        assert rows
        return rows

    def of(self, rows: Sequence[Pair], *, positions: int | None = 4096, **data: Any) -> Statistics:
        corpus = self.corpus(write(self.folder / "rows.jsonl", rows), **data)
        return measure(corpus, model=model(positions), max_length=min(1024, positions or 1024))


def at(found: Statistics, length: int) -> AtLength:
    return next(each for each in found.lengths if each.cut.length == length)


def by_name(found: Statistics) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {each.name: (each.rows, each.places) for each in found.suspicions}
