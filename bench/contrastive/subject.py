"""What is trained: a small random Llama, pairs of made-up texts, and the values that each adapter begins with."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.monitoring.runs import SHAPE

LAYERS = 6
SHORTEST, LONGEST = 10, 100
"""Tokens of a document, drawn uniformly: kinder to padding than real texts, whose lengths have a long tail."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
BASE, CAUSAL_BASE = "bidirectional", "base"
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TEMPERATURE, LEARNING_RATE = 0.02, 1e-4


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Both bases (the same weights; one's config.json says that it is bidirectional) and pairs.jsonl, in a folder."""

    folder: str
    pairs: int
    lengths: list[int]

    @classmethod
    def read(cls, folder: Path) -> Subject:
        """The subject that was made there."""
        return cls(**json.loads((folder / "subject.json").read_text(encoding="utf-8")))

    @property
    def tokens(self) -> int:
        """Real tokens of a step."""
        return sum(self.lengths)

    def path(self, name: str) -> Path:
        """A file of the subject."""
        return Path(self.folder) / name

    def texts(self) -> list[tuple[str, str]]:
        """Query and passage of each pair."""
        lines = self.path("pairs.jsonl").read_text(encoding="utf-8").splitlines()
        return [(row["anchor"], row["positive"]) for row in map(json.loads, lines)]


def made(folder: Path, *, pairs: int, is_mixed: bool, layers: int = LAYERS) -> Subject:
    """Write them. `is_mixed`: lengths from SHORTEST to LONGEST tokens; else all have the mean of those."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from loradock import demo

    tokenizer = AutoTokenizer.from_pretrained(Path(demo.__file__).parent / "base")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), **{**SHAPE, "num_hidden_layers": layers})
    LlamaForCausalLM(config).save_pretrained(folder / CAUSAL_BASE)
    tokenizer.save_pretrained(folder / CAUSAL_BASE)
    bidirectional = folder / BASE
    bidirectional.mkdir()
    for file in (folder / CAUSAL_BASE).iterdir():
        (bidirectional / file.name).symlink_to(file)
    (bidirectional / "config.json").unlink()
    values = json.loads((folder / CAUSAL_BASE / "config.json").read_text(encoding="utf-8"))
    (bidirectional / "config.json").write_text(json.dumps({**values, "is_causal": False}), encoding="utf-8")
    draw = random.Random(0)
    mean = (SHORTEST + LONGEST) // 2
    wanted = [draw.randint(SHORTEST, LONGEST) if is_mixed else mean for _ in range(2 * pairs)]
    texts = [text_of(tokenizer, tokens, draw) for tokens in wanted]
    rows = [{"anchor": query, "positive": passage} for query, passage in zip(texts[::2], texts[1::2], strict=True)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lengths = [len(tokenizer(text).input_ids) for text in texts]
    subject = Subject(folder=str(folder), pairs=pairs, lengths=lengths)
    (folder / "subject.json").write_text(json.dumps(asdict(subject)), encoding="utf-8")
    return subject


def text_of(tokenizer: Any, tokens: int, draw: random.Random) -> str:
    """A text of so many tokens: letters between blanks, cut to the length."""
    while True:
        letters = "".join(draw.choice(LETTERS) + " " * draw.randint(0, 1) for _ in range(3 * tokens))
        offsets = tokenizer(letters, return_offsets_mapping=True).offset_mapping
        text = letters[: offsets[tokens - 1][1]] if len(offsets) >= tokens else ""
        if len(tokenizer(text).input_ids) == tokens:
            return text


def set_values(named: Iterable[tuple[str, Any]]) -> None:
    """Give the adapter its values: 0.02 sin(0.1 j + i), element j of the i-th matrix by name from `layers` on."""
    import torch

    trained = sorted((name.partition("layers.")[2], each) for name, each in named if each.requires_grad)
    with torch.no_grad():
        for place, (_, each) in enumerate(trained):
            values = 0.02 * torch.sin(0.1 * torch.arange(each.numel(), dtype=torch.float64) + place)
            each.copy_(values.float().view_as(each))
