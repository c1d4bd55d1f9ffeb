"""Whether preference tuning learns, of a real base: `python -m bench.preference.learning`, in the repository's root.

    .venv/bin/python -m bench.preference.learning --model DIR --data DIR --folder DIR --seed 2    half an hour on a core
    .venv/bin/python -m bench.preference.learning --table          only the table, from the lines of the last runs

`--data` has commonsense_5k.json and the test files beside it, questions with four options in the LLM-Adapters layout.
A seed draws the questions and the wrong option of each: supervised training on right options, then each loss from that
adapter on pairs of others. All are judged by the same held-out pairs, with the typed commands. Lines go to
bench/results/preference/learning.jsonl, the table to learning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.contrastive.__main__ import ROOT
from bench.train.lines import append, read

RESULTS = ROOT / "bench" / "results" / "preference"
QUESTION = re.compile(
    r"Please choose the correct answer to the question: (.*?)\n\n(Answer1: .*)\n\nAnswer format", re.S
)
TESTS = ("arc-easy_test_500.json", "openbookqa_test_500.json")
HELD_OUT = 300
COMMON: dict[str, object] = {
    "train.learning_rate": 5e-4,
    "train.global_batch": 8,
    "device": "cpu",
    "data.validation": 0,
    "train.threads": 1,
}

EPOCHS = {"sft": 2, "dpo": 2, "kto": 1}
"""KTO takes each pair as two answers, so that one epoch has as many steps."""


def questions(file: Path, *, draw: random.Random) -> list[dict[str, str]]:
    """Each question with its right option, and one of the wrong ones."""
    found: list[dict[str, str]] = []
    for row in json.loads(file.read_text(encoding="utf-8")):
        asked = QUESTION.match(row["instruction"])
        if asked is None:
            continue
        options = [each.strip() for each in re.split(r"Answer\d: ", asked[2])[1:]]
        right = options.pop(int(row["answer"].removeprefix("answer")) - 1)
        wrong = draw.choice(options)
        prompt = f"Question: {asked[1].strip()}\nAnswer:"
        found.append({"prompt": prompt, "chosen": f" {right}", "rejected": f" {wrong}"})
    return found


def write(folder: Path, *, data: Path, seed: int, count: int) -> None:
    """rows.jsonl and pairs.jsonl of `count` training questions each, and held_out.jsonl, which no seed changes."""
    held_out = [questions(data / name, draw=random.Random(0))[: HELD_OUT // len(TESTS)] for name in TESTS]
    drawn = questions(data / "commonsense_5k.json", draw=random.Random(seed))
    random.Random(seed).shuffle(drawn)
    rows = [{"prompt": each["prompt"], "completion": each["chosen"]} for each in drawn[:count]]
    files = {"rows": rows, "pairs": drawn[count : 2 * count], "held_out": [each for part in held_out for each in part]}
    for name, lines in files.items():
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def loradock(*arguments: str) -> None:
    """The command, with one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "loradock", *arguments], check=True, env=environment, cwd=ROOT)


def train(output: Path, *, model: Path, rows: Path, settings: dict[str, object]) -> None:
    """A run; one that is complete stays."""
    typed = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    loradock("train", "--model", str(model), "--data", str(rows), "--output", str(output), "--skip-env-check", *typed)


def evaluate(model: Path, *, rows: Path, output: Path, base: Path, against: Path | None) -> dict[str, Any]:
    """The accuracy of its choices; against another model with the paired test."""
    beside = [] if model == base else ["--base-model", str(base)]
    beside += ["--against", str(against)] if against else []
    loradock("evaluate", str(model), "--data", str(rows), "--metric", "choice", "--output", str(output), *beside)
    return json.loads((output / "results.json").read_text(encoding="utf-8"))


def measure(folder: Path, *, model: Path, seed: int, losses: Sequence[str]) -> None:
    """One seed: supervised, and each loss from that, held against it."""
    held_out, supervised = folder / "held_out.jsonl", folder / "sft"
    settings = COMMON | {"train.seed": seed}
    train(supervised, model=model, rows=folder / "rows.jsonl", settings=settings | {"train.epochs": EPOCHS["sft"]})
    for loss in losses:
        output, measured = folder / loss, folder / f"measured-{loss}"
        own = {"objective": "preference", "preference.loss": loss, "lora.adapter": supervised}
        epochs = {"train.epochs": EPOCHS[loss]}
        train(output, model=model, rows=folder / "pairs.jsonl", settings=settings | own | epochs)
        results = evaluate(output, rows=held_out, output=measured, base=model, against=supervised)
        append(RESULTS / "learning.jsonl", line_of(results, measured, seed=seed, loss=loss))


def line_of(results: dict[str, Any], measured: Path, *, seed: int, loss: str) -> dict[str, Any]:
    """What `loradock evaluate` found, and of how many pairs the supervised adapter chose the right one."""
    task, against = results["tasks"][0], results["against"]
    rows = measured / Path(against["rows"][task["task"]]).name
    right = sum(json.loads(row)["score"] for row in rows.read_text(encoding="utf-8").splitlines())
    return {
        "seed": seed,
        "loss": loss,
        "pairs": task["score"]["rows"],
        "supervised": right / task["score"]["rows"],
        "score": task["score"],
        "difference": against["tasks"][task["task"]]["difference"],
    }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A row for each run."""
    shown = [
        "# What preference tuning learns, of a real base",
        "",
        "Held-out pairs whose right option is the likelier one; 95 % intervals (Wilson, Newcombe), McNemar's test.",
        "",
        "| loss | seed | pairs | after supervised training | after the loss | difference in points |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in lines:
        score, found = line["score"], line["difference"]
        after = f"{score['value']:.1%} ({score['low']:.1%} to {score['high']:.1%})"
        points = f"{found['difference'] * 100:+.1f} ({found['low'] * 100:.1f} to {found['high'] * 100:.1f})"
        cells = [line["loss"], line["seed"], line["pairs"], f"{line['supervised']:.1%}", after]
        shown.append(f"| {' | '.join(map(str, cells))} | {points}, p = {found['p']:.2g} |")
    return "\n".join([*shown, ""])


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(prog="bench.preference.learning", description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, help="where rows and runs lie; the same again continues them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="supervised rows, and pairs")
    parser.add_argument("--losses", nargs="+", default=["dpo", "kto"], choices=[*EPOCHS][1:])
    parser.add_argument("--table", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    if not asked.table:
        asked.folder.mkdir(parents=True, exist_ok=True)
        write(asked.folder, data=asked.data, seed=asked.seed, count=asked.count)
        measure(asked.folder, model=asked.model, seed=asked.seed, losses=asked.losses)
    text = table(read(RESULTS / "learning.jsonl"))
    (RESULTS / "learning.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
