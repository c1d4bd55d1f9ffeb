"""The files of an adapter, of a merged model, and of answers in the making."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fuzz.kinds.base import Kind, Mutate
from fuzz.kinds.checkpoints import SPOILT_WEIGHTS
from fuzz.kinds.run_directory import SPOILT, SPOILT_LINES, make, of_run, ran
from fuzz.mutate import any_of, of_bytes, of_json
from proven import unchecked
from tiny import make_llama, write_pairs, write_rows

ASKED = ("--input", "questions.jsonl", "-o", "answers.jsonl", "--max-new-tokens", "2", "--device", "cpu")
GENERATE = ("generate", "adapter", *ASKED)
OF_RUN = ("generate", "run", *ASKED)
OF_MERGED = ("generate", "merged", *ASKED)
MERGE = ("merge", "adapter", "merged")
EMBED = ("embed", "adapter", "--input", "texts.txt", "-o", "vectors.npy", "--device", "cpu")
JOURNAL = ".answers.jsonl.journal"


def make_adapter(folder: Path) -> None:
    """An adapter outside of its run, which is there too, and rows to answer."""
    make(folder)
    shutil.copytree(folder / "run" / "adapter", folder / "adapter")
    write_rows(folder / "questions.jsonl", rows=3)


def make_merged(folder: Path) -> None:
    """A merged model."""
    make_adapter(folder)
    ran(*MERGE)


def make_answers(folder: Path) -> None:
    """Answers that a kill left journalled."""
    from loradock.use.inference.journal import Journal

    make_adapter(folder)
    finish, Journal.finish = Journal.finish, lambda *_: None  # type: ignore[method-assign]
    ran(*OF_RUN)
    Journal.finish = finish  # type: ignore[method-assign]


def make_embedding(folder: Path) -> None:
    """An embedding adapter, and texts."""
    os.chdir(folder)
    make_llama(folder / "model")
    write_pairs(folder / "pairs.jsonl", rows=12)
    sets = {
        "objective": "embedding",
        "data.cache": "cache",
        "device": "cpu",
        "lora.rank": 2,
        "train.max_steps": 1,
        "embedding.global_batch": 4,
        "embedding.query_length": 64,
        "embedding.passage_length": 64,
    }
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    paths = ("--model", "model", "--data", "pairs.jsonl", "--output", "run")
    ran("train", *paths, *words, unchecked("the adapter is what counts"))
    shutil.copytree(folder / "run" / "adapter", folder / "adapter")
    (folder / "texts.txt").write_text("river apple\nstone\n", encoding="utf-8")


def of_adapter(name: str, file: str, mutate: Mutate, command: tuple[str, ...], *, share: float = 0.3) -> Kind:
    """A file of the adapter."""
    return Kind(name=name, make=make_adapter, file=f"adapter/{file}", mutate=mutate, command=command, share=share)


ADAPTERS = (
    of_adapter("adapter_config.json, generate", "adapter_config.json", SPOILT, GENERATE),
    of_adapter("adapter_config.json, merge", "adapter_config.json", SPOILT, MERGE),
    of_adapter("training.json, generate", "training.json", SPOILT, GENERATE),
    of_adapter("training.json, merge", "training.json", SPOILT, MERGE),
    of_adapter("adapter weights, generate", "adapter_model.safetensors", SPOILT_WEIGHTS, GENERATE),
    of_adapter("adapter weights, merge", "adapter_model.safetensors", SPOILT_WEIGHTS, MERGE),
    of_run("run.json, generate", "run.json", SPOILT, OF_RUN, share=0.3, made=make_adapter),
    Kind(
        name="merge.json, generate",
        make=make_merged,
        file="merged/merge.json",
        mutate=any_of(of_json, of_bytes),
        command=OF_MERGED,
        share=0.1,
    ),
    Kind(name="journal, generate", make=make_answers, file=JOURNAL, mutate=SPOILT_LINES, command=OF_RUN, share=0.3),
    Kind(
        name="embedding.json, embed",
        make=make_embedding,
        file="adapter/embedding.json",
        mutate=SPOILT,
        command=EMBED,
        share=0.3,
    ),
    Kind(
        name="adapter_config.json, embed",
        make=make_embedding,
        file="adapter/adapter_config.json",
        mutate=SPOILT,
        command=EMBED,
        share=0.2,
    ),
)
