"""llama.cpp itself reads an exported file: the same ids and greedy answers as transformers with the model directory.

It runs where LORADOCK_LLAMA_CPP names the Python of an environment that has llama-cpp-python (built from source).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from export_gguf.in_llama_cpp import MOST_TOKENS
from export_gguf.test_export import TEXTS
from merge.test_demo import typed
from tiny import BASE
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock import demo
from loradock.demo.exam import load_heldout
from loradock.use.gguf.export import export
from loradock.use.inference.opener import find

PROGRAM = Path(__file__).with_name("in_llama_cpp.py")
TRAINED = Path(demo.__file__).with_name("train.jsonl")
MOST_TEXTS = 1_000


def texts_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """1,000 texts: those of the rows, of the demo's training, and such as are hard to cut."""
    trained = [json.loads(line) for line in TRAINED.read_text(encoding="utf-8").splitlines()]
    found = [*TEXTS, *(" ".join(map(str, row.values())) for row in (*rows, *trained))]
    return found[:MOST_TEXTS]


def same_answers(model_directory: Path, tmp_path: Path, python: str) -> tuple[int, int]:
    """Of how many held-out rows llama.cpp's greedy answer is that of transformers; fails where any ids differ."""
    export(find(model_directory), tmp_path / "a.gguf", type_name="bf16", progress=lambda *_: None)
    words = AutoTokenizer.from_pretrained(model_directory)
    rows = load_heldout()
    texts = texts_of(rows)
    assert len(texts) == MOST_TEXTS
    turns = [[{"role": "user", "content": row["instruction"]}] for row in rows]
    written = [words.apply_chat_template(each, add_generation_prompt=True, tokenize=False) for each in turns]
    prompts = [each.removeprefix(words.bos_token) for each in written]
    (tmp_path / "job.json").write_text(json.dumps({"texts": texts, "prompts": prompts}))
    files = [str(tmp_path / name) for name in ("a.gguf", "job.json", "out.json")]
    done = subprocess.run([python, str(PROGRAM), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["texts"] == [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    model: Any = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    same = 0
    for prompt, (ids, answer) in zip(written, found["answers"], strict=True):
        wanted = words(prompt, add_special_tokens=False)["input_ids"]
        assert ids == wanted
        given = torch.tensor([wanted])
        whole = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=MOST_TOKENS)
        same += [token for token in whole[0, len(wanted) :].tolist() if token != words.eos_token_id] == answer
    return same, len(rows)


def test_llama_cpp_gives_the_same_ids_and_greedy_answers(tmp_path: Path, python: str) -> None:
    same, rows = same_answers(BASE, tmp_path, python)
    assert same >= rows - 2, same  # a tie in sums of another order


@pytest.mark.full
def test_llama_cpp_answers_as_the_merged_demo(tmp_path: Path, python: str) -> None:
    typed("train", "--demo", folder=tmp_path)
    typed("merge", "runs/demo-001", "merged", "--dtype", "bf16", folder=tmp_path)
    assert same_answers(tmp_path / "merged", tmp_path, python) == (105, 105)
