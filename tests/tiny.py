"""Tiny real models, and rows: what the tests of the model, the engine and the commands share; see `whole_runs`."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from loradock import demo

BASE = Path(demo.__file__).parent / "base"
WORDS = "river apple stone cloud lamp table horse green seven window paper salt winter bridge".split()


def make_llama(directory: Path, *, seed: int = 0, **settings: Any) -> Path:
    """A random Llama of 2 layers and hidden size 64, with the demo's tokenizer, saved to `directory`."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**shape, **settings}))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def without_template(model: Path) -> Path:
    """The model directory, whose tokenizer no longer has a chat template."""
    (model / "chat_template.jinja").unlink(missing_ok=True)
    file = model / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(file.read_text()).items() if key != "chat_template"}
    file.write_text(json.dumps(settings))
    return model


def write_rows(file: Path, *, rows: int = 48, seed: int = 0, longest: int = 12) -> Path:
    """Alpaca rows of random length as JSONL."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = [draw.choice(WORDS) for _ in range(draw.randint(2, longest))]
        row = {"instruction": "Write the words backwards.", "input": " ".join(words), "output": " ".join(words[::-1])}
        lines.append(json.dumps(row))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def write_pairs(file: Path, *, rows: int = 48, seed: int = 0, negatives: int = 2) -> Path:
    """Queries of random words, each with its words backwards as the positive, and others' as hard negatives."""
    draw = random.Random(seed)
    queries = [" ".join(draw.sample(WORDS, draw.randint(3, 6))) for _ in range(rows)]
    lines = []
    for query in queries:
        others = draw.sample([each for each in queries if each != query], negatives)
        passages = [" ".join(each.split()[::-1]) for each in (query, *others)]
        row = {"query": ["Find the words", query], "pos": [["", passages[0]]], "neg": [["", p] for p in passages[1:]]}
        lines.append(json.dumps(row))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def copy_tree(source: Path, target: Path) -> Path:
    """A copy of a directory that may be spoilt."""
    return Path(shutil.copytree(source, target))
