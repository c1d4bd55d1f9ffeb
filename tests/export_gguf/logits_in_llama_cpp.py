"""A program for an environment of its own that has llama-cpp-python: JOB.json OUT.json.

The job has `files` and `rows` of ids; out come for each file the logits of each row, and its greedy answer.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ANSWER_TOKENS = 16
F32 = 0


def computed(model: Any, row: list[int]) -> dict[str, Any]:
    """Logits at each position of the row, and the ids of the greedy answer behind it."""
    model.reset()
    model.eval(row)
    logits = model.scores[: len(row)].tolist()
    answer: list[int] = []
    for _ in range(ANSWER_TOKENS):
        scores = model.scores[model.n_tokens - 1]
        answer.append(int(scores.argmax()))
        model.eval(answer[-1:])
    return {"logits": logits, "answer": answer}


def main(job: str, output: str) -> None:
    """Do the job."""
    asked = json.loads(Path(job).read_text(encoding="utf-8"))
    llama = import_module("llama_cpp").Llama
    found: dict[str, Any] = {}
    for file in asked["files"]:
        # F32 for keys and values, too: what is left of a difference is the order of sums.
        model = llama(file, n_ctx=256, n_threads=1, logits_all=True, type_k=F32, type_v=F32, verbose=False)
        found[file] = [computed(model, row) for row in asked["rows"]]
        model.close()
    Path(output).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
