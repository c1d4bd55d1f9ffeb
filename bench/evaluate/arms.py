"""The arms, each a process that holds the model and answers rows: `python -m bench.evaluate.arms ASKED NAME`.

ASKED is a JSON object: `model`, `tasks` (a folder) and `limit` rows of each task. A line on stdin is a list of row
numbers, counted over the tasks; a line on stdout has what came of each row, and the seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loradock.use.evaluation import tasks
from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods import Choice, LlmAdapters, batches
from loradock.use.evaluation.tasks.base import Task
from loradock.use.inference.opener import Opened, open_model

TASKS = ("boolq", "arc-easy", "openbookqa")
BATCH_TOKENS = 16_384
OURS, LM_EVAL = "ours", "lm-eval"
OURS_BEAMS, BEAMS = "ours-beams", "llm-adapters"
Row = tuple[Task, Item]
Answer = Callable[[Sequence[Row]], list[Any]]


def rows_of(folder: Path, *, limit: int) -> list[Row]:
    """The first rows of each task, the tasks by turns, so that each round has some of each."""
    sets = []
    for name in TASKS:
        task = tasks.named(name)
        sets.append([(task, item) for item in task.read(task.file_in(folder), limit=limit).items])
    return [row for turn in zip(*sets, strict=True) for row in turn]


def ours(opened: Opened, *, has_beams: bool) -> Answer:
    """As `loradock evaluate` runs them; of choices the log-probabilities, of generated answers the text."""

    def answer(rows: Sequence[Row]) -> list[Any]:
        found: dict[int, Any] = {}
        method = LlmAdapters(opened, rows[0][0]) if has_beams else Choice(opened)
        numbered = {id(item): number for number, (_, item) in enumerate(rows)}
        works = [method.prepare(item) for _, item in rows]
        for batch in batches(method, works, batch_tokens=BATCH_TOKENS):
            for work, outcome in zip(batch, method.run(batch), strict=True):
                found[numbered[id(work.item)]] = outcome.text if has_beams else list(outcome.logprobs or ())
        return [found[number] for number in range(len(rows))]

    return answer


def lm_eval(opened: Opened, *, batch_size: int) -> Answer:
    """lm-eval's HFLM on the ids that `Choice` prepares: its own sorting, batches, and reuse of equal contexts."""
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    harness: Any = HFLM(pretrained=opened.model, tokenizer=opened.tokenizer, batch_size=batch_size)
    method = Choice(opened)

    def answer(rows: Sequence[Row]) -> list[Any]:
        requests, counts = [], []
        for number, (_, item) in enumerate(rows):
            branches = method.prepare(item).given
            context, shared = branches.prefix[: branches.start], branches.prefix[branches.start :]
            for end in branches.ends:
                requests.append(((f"{number}", f"{len(requests)}"), context, [*shared, *end]))
            counts.append(len(branches.ends))
        values = iter([value for value, _ in harness._loglikelihood_tokens(requests, disable_tqdm=True)])
        return [[next(values) for _ in range(count)] for count in counts]

    return answer


def llm_adapters(opened: Opened, *, batch_size: int) -> Answer:
    """The loop of LLM-Adapters, written from its description: rows in file order, left padding, 4 beams."""
    import torch

    from loradock.use.evaluation.methods.llm_adapters import prompt_of, response_of

    tokenizer, model = opened.tokenizer, opened.model
    tokenizer.padding_side, tokenizer.pad_token_id = "left", 0

    def answer(rows: Sequence[Row]) -> list[Any]:
        found: list[str] = []
        for start in range(0, len(rows), batch_size):
            prompts = [prompt_of(item.question) for _, item in rows[start : start + batch_size]]
            given = tokenizer(prompts, return_tensors="pt", padding=True)
            with torch.no_grad():
                made = model.generate(
                    input_ids=given["input_ids"],
                    attention_mask=given["attention_mask"],
                    num_beams=4,
                    max_new_tokens=32,
                    do_sample=False,
                    pad_token_id=0,
                )
            found += [response_of(text) for text in tokenizer.batch_decode(made, skip_special_tokens=True)]
        return found

    return answer


def arm(name: str, opened: Opened) -> Answer:
    """An arm by its name; of a peer with its batch size, `lm-eval-16`."""
    if name in (OURS, OURS_BEAMS):
        return ours(opened, has_beams=name == OURS_BEAMS)
    kind, _, size = name.rpartition("-")
    return {LM_EVAL: lm_eval, BEAMS: llm_adapters}[kind](opened, batch_size=int(size))


def main() -> None:
    """Answer until stdin ends."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    asked, name = json.loads(sys.argv[1]), sys.argv[2]
    rows = rows_of(Path(asked["tasks"]), limit=asked["limit"])
    answer = arm(name, open_model(Path(asked["model"]), dtype="float32", device="cpu"))
    print(json.dumps({"ready": name, "rows": len(rows)}), file=stream, flush=True)
    for line in sys.stdin:
        chosen = [rows[number] for number in json.loads(line)]
        began, began_cpu = time.perf_counter(), time.process_time()
        found = answer(chosen)
        seconds = {"cpu_seconds": time.process_time() - began_cpu, "wall_seconds": time.perf_counter() - began}
        print(json.dumps({"answers": found, **seconds}), file=stream, flush=True)


if __name__ == "__main__":
    main()
