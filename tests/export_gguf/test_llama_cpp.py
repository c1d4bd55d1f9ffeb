"""llama.cpp itself reads an exported file: the same ids and greedy answers as transformers with the model directory.

It runs where LORADOCK_LLAMA_CPP names the Python of an environment that has llama-cpp-python (built from source).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from export_gguf.in_llama_cpp import MOST_TOKENS
from tiny import BASE
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.demo.task import load_heldout
from loradock.gguf.export import export
from loradock.inference.opener import find

PROGRAM = Path(__file__).with_name("in_llama_cpp.py")


def test_llama_cpp_gives_the_same_ids_and_greedy_answers(tmp_path: Path) -> None:
    python = os.environ.get("LORADOCK_LLAMA_CPP")
    if not python:
        pytest.skip("no llama-cpp-python here: LORADOCK_LLAMA_CPP names the Python that has it")
    export(find(BASE), tmp_path / "a.gguf", type_name="bf16", progress=lambda *_: None)
    words = AutoTokenizer.from_pretrained(BASE)
    rows = load_heldout()
    texts = [" ".join(map(str, row.values())) for row in rows]
    turns = [[{"role": "user", "content": row["instruction"]}] for row in rows]
    written = [words.apply_chat_template(each, add_generation_prompt=True, tokenize=False) for each in turns]
    prompts = [each.removeprefix(words.bos_token) for each in written]
    (tmp_path / "job.json").write_text(json.dumps({"texts": texts, "prompts": prompts}))
    files = [str(tmp_path / name) for name in ("a.gguf", "job.json", "out.json")]
    done = subprocess.run([python, str(PROGRAM), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["texts"] == [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    model: Any = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    same = 0
    for prompt, (ids, answer) in zip(written, found["answers"], strict=True):
        wanted = words(prompt, add_special_tokens=False)["input_ids"]
        assert ids == wanted
        given = torch.tensor([wanted])
        whole = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=MOST_TOKENS)
        same += [token for token in whole[0, len(wanted) :].tolist() if token != words.eos_token_id] == answer
    assert same >= len(rows) - 2, same  # a tie in sums of another order
