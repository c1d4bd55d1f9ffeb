"""Adapters that say how they embed, made without a training run; texts to embed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.config.load import load
from loradock.training.recipe import Recipe

TEXTS = [
    "How tall is K2?",
    "a lamp",
    "seven horses on a bridge over the river in winter",
    "Wörter, 日本 🙂",
    "salt " * 40,
]
TASK = "Find the answer"


def make_adapter(folder: Path, *settings: str, base: Path, dtype: torch.dtype = torch.float32, **lora: Any) -> Path:
    """A LoRA adapter with random weights, its tokenizer, and embedding.json as a run with these settings writes it."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    chosen = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"], **lora}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **chosen))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape) * 0.05
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    tokenizer.save_pretrained(folder)
    write_recipe(folder, *settings, base=base)
    return folder


def write_recipe(folder: Path, *settings: str, base: Path) -> None:
    """embedding.json of a run with these settings; base weights as they are unless they say otherwise."""
    asked = ("objective=embedding", "model.quantization=none", *settings)
    config = load(None, overrides=asked, shortcuts={"--model": str(base), "--data": [str(base)]}).config
    tokenizer = AutoTokenizer.from_pretrained(base)
    Recipe.of(config, tokenizer, base={"name": str(base), "revision": None}).write(folder)


def with_bos(base: Path) -> Path:
    """The model directory, its tokenizer now writing BOS before each text, with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    special = [("<s>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=special)
    tokenizer.chat_template = "{% for each in messages %}[{{ each.content }}]{% endfor %}"
    tokenizer.save_pretrained(base)
    return base


def write_retrieval(folder: Path) -> Path:
    """A small data set in BEIR's layout: query i asks for passage i, and passage 9 is worth half for the first."""
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"d{i}", "title": f"note {i}", "text": " ".join([TEXTS[i % 4], str(i)])} for i in range(30)]
    queries = [{"_id": f"q{i}", "text": f"{TEXTS[i % 4]} {i}"} for i in range(12)]
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    judged = [f"q{i}\td{i}\t1" for i in range(10)] + ["q0\td9\t1", "q1\td3\t0", "q10\td4\t0"]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n", "utf-8")
    return folder


def write_sentences(file: Path) -> Path:
    """Pairs of sentences with scores, some of them equal."""
    pairs = [(a, b, float((i * 7 + j * 3) % 5)) for i, a in enumerate(TEXTS) for j, b in enumerate(TEXTS)]
    return write_lines(file, [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in pairs])


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    """JSONL."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return file
