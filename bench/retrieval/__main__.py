"""Retrieval before and after training, of a real base, on a CPU: `python -m bench.retrieval --model DIR --data DIR`.

Trains objectives embedding and gritlm by the command that users type, with three seeds each, and evaluates base and
adapter on two held-out sets, and the loss of held-out rows to answer from. A result is a line of
bench/results/retrieval/lines.jsonl as soon as it is there, and is not made again; the table is made of the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from bench.retrieval import measured, table, task
from bench.retrieval.generation import held_out_loss

ROOT = Path(__file__).parents[2]
LINES = ROOT / "bench" / "results" / "retrieval" / "lines.jsonl"
OBJECTIVES = ("embedding", "gritlm")
SETTINGS = (
    *("embedding.global_batch=32", "embedding.negatives=1", "embedding.temperature=0.05"),
    *("train.learning_rate=5e-4", "train.global_batch=8"),
)


def main() -> None:
    """Make what is missing, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a real base")
    parser.add_argument("--data", type=Path, required=True, help="the folder of commonsense_5k.json and the test sets")
    parser.add_argument("--work", type=Path, default=Path("retrieval"), help="where rows and runs lie")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    counts = task.write(asked.data, asked.work / "task")
    print(json.dumps(counts))
    LINES.parent.mkdir(parents=True, exist_ok=True)
    done = {(line["objective"], line["seed"]) for line in table.read(LINES)}
    for seed in range(asked.seeds):
        for objective in OBJECTIVES:
            if (objective, seed) not in done:
                line = {"objective": objective, "seed": seed, "steps": asked.steps, "counts": counts}
                line |= result(asked, objective, seed)
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    print(table.made_of(table.read(LINES)))


def result(asked: argparse.Namespace, objective: str, seed: int) -> dict[str, Any]:
    """Train, and evaluate base and adapter."""
    folder = asked.work / f"{objective}-{seed}"
    rows = ["--data", str(asked.work / "task" / "rows.jsonl")] if objective == "gritlm" else []
    settings = (*SETTINGS, f"objective={objective}", f"train.seed={seed}", f"data.cache={asked.work / 'cache'}")
    sets = [word for setting in settings for word in ("--set", setting)]
    pairs = ["--data", str(asked.work / "task" / "pairs.jsonl")]
    train = ["train", "--model", str(asked.model), *pairs, *rows, *sets, "--max-steps", str(asked.steps)]
    loradock(*train, "--output", str(folder))
    tests = {name: asked.work / "task" / name for name in task.TESTS}
    held_out = asked.work / "task" / "held_out.jsonl"
    losses = {
        "before": base_loss(asked.model, held_out),
        "after": held_out_loss(asked.model, folder / "adapter", held_out),
    }
    record = json.loads((folder / "run.json").read_text("utf-8"))
    return {
        "measures": measured.against_base(folder, tests, instruction=task.INSTRUCTION),
        "generative_loss": losses,
        "seconds": record["outcome"]["seconds"],
    }


@cache
def base_loss(model: Path, held_out: Path) -> float:
    """Measured once."""
    return held_out_loss(model, None, held_out)


def loradock(*words: str) -> str:
    """The command's stdout; its messages stay on the screen."""
    command = [sys.executable, "-m", "loradock", *words]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
