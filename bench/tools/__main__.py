"""Calls of made-up functions before and after training, of a real base on a CPU: `python -m bench.tools --model DIR`.

The template is one that TRL ships (Qwen 2.5's), since the base's own has no tools. Trains and evaluates by the commands
that users type; the result is bench/results/tools/calls.json, and the table beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import trl

from bench.tools import task

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "tools"
SETTINGS = (
    "train.learning_rate=1e-3",
    "train.global_batch=4",
    "lora.rank=16",
    "train.epochs=1",
    "model.quantization=none",
)


def main() -> None:
    """Make rows, train, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a real base")
    parser.add_argument("--work", type=Path, default=Path("tools"), help="where rows and the run lie")
    parser.add_argument("--template", default="qwen2_5", help="of those that TRL ships")
    parser.add_argument("--rows", type=int, default=72)
    parser.add_argument("--held-out", type=int, default=40)
    asked = parser.parse_args()
    task.write(asked.work, train=asked.rows, held_out=asked.held_out)
    template = Path(trl.__file__).parent / "chat_templates" / f"{asked.template}.jinja"
    run = asked.work / "run"
    sets = [f"data.template={template}", f"data.cache={asked.work / 'cache'}", *SETTINGS]
    rows, held_out = asked.work / "rows.jsonl", asked.work / "held_out.jsonl"
    if not (run / "adapter").exists():
        words = [word for setting in sets for word in ("--set", setting)]
        train = ["train", "--model", str(asked.model), "--data", str(rows), *words, "--skip-env-check"]
        loradock(*train, "--output", str(run))
    metric = ["--metric", "calls", "--base", "--max-new-tokens", "112", "--json"]
    text = loradock("evaluate", str(run), "--data", str(held_out), *metric)
    found = json.loads(text[text.index("{\n") :])
    record = json.loads((run / "run.json").read_text("utf-8"))
    result = {
        "model": asked.model.name,
        "template": asked.template,
        "rows": asked.rows,
        "held_out": asked.held_out,
        "seconds_trained": round(record["outcome"]["seconds"]),
        "after": shares(found["tasks"][0]),
        "difference": {name: found["against"]["tasks"][held_out.name][name] for name in ("difference", "names")},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "calls.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "calls.md").write_text(table(result), encoding="utf-8")
    print(table(result))


def shares(found: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a task."""
    return {name: found[name] for name in ("score", "names", "uncalled", "unread", "stopped")}


def table(result: dict[str, Any]) -> str:
    """Markdown: a line for each share."""
    head = (
        f"{result['model']}, template {result['template']}: {result['rows']} rows, one epoch, "
        f"{result['seconds_trained']} s on a CPU; {result['held_out']} held-out rows.\n\n"
        "| right | before | after | 95 % interval | difference | 95 % interval |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    )
    lines = ""
    for what, score, paired in (("name and arguments", "score", "difference"), ("name", "names", "names")):
        after, apart = result["after"][score], result["difference"][paired]
        before = after["value"] - apart["difference"]
        lines += f"| {what} | {before:.1%} | {after['value']:.1%} | {after['low']:.1%} to {after['high']:.1%} "
        lines += f"| {100 * apart['difference']:+.1f} | {100 * apart['low']:+.1f} to {100 * apart['high']:+.1f} |\n"
    after = result["after"]
    return head + lines + f"\nAfter: no call {after['uncalled']:.1%}, unreadable {after['unread']:.1%}.\n"


def loradock(*words: str) -> str:
    """The command's stdout; its messages stay on the screen."""
    command = [sys.executable, "-m", "loradock", *words]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
