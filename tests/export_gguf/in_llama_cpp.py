"""A program for an environment of its own that has llama-cpp-python: FILE JOB.json OUT.json.

The job has `texts` and `prompts`; out come the ids of each text, and of each prompt its ids and those of its answer.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MOST_TOKENS = 48


def answer(model: Any, prompt: str) -> tuple[list[int], list[int]]:
    """Ids of the prompt, with BOS where the file says so, and of the answer up to EOS."""
    ids, found = model.tokenize(prompt.encode(), add_bos=True, special=True), []
    for token in model.generate(ids, temp=0.0, top_k=1):
        if token == model.token_eos() or len(found) == MOST_TOKENS:
            break
        found.append(token)
    return ids, found


def main(file: str, job: str, output: str) -> None:
    """Answer the job."""
    asked = json.loads(Path(job).read_text(encoding="utf-8"))
    model = import_module("llama_cpp").Llama(file, n_ctx=256, verbose=False)
    texts = [model.tokenize(text.encode(), add_bos=False, special=True) for text in asked["texts"]]
    answers = [answer(model, prompt) for prompt in asked["prompts"]]
    Path(output).write_text(json.dumps({"texts": texts, "answers": answers}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
