"""DPO against TRL's trainer, and the prompt once or twice: `python -m bench.preference`, in the repository's root.

    .venv/bin/python -m bench.preference --model DIR         twenty minutes on two cores with SmolLM2-135M
    .venv/bin/python -m bench.preference --model DIR --ratios 1 --rounds 2 --pairs 2 --answer 16
    .venv/bin/python -m bench.preference --table             only the table, from the lines of the last run

Each arm is a process of one thread that holds model, adapter and the same pairs, whose prompts and answers have one
length each, so that nothing is padded. A round is one whole step of each, another arm first each
time. Lines go to bench/results/preference/steps.jsonl after each length of the prompt, the table to steps.md. With
prompts of four times the answers a process takes up to 7 GiB: five of them did not get through on 24 GiB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.contrastive.__main__ import ROOT, Process
from bench.floor.machine import described
from bench.preference.arms import ARMS, KEPT, PRECOMPUTED, TRL
from bench.train.lines import append, read
from loradock.env_check.paired_ratio import ratio

RESULTS = ROOT / "bench" / "results" / "preference"
FIRST = ARMS[0]


def write_pairs(folder: Path, *, pairs: int, prompt: int, answer: int) -> int:
    """pairs.jsonl with texts of so many tokens; the tokens of all documents, ends included."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    numbers = random.Random(0)
    plain = [
        token
        for token in range(1000, 20_000)
        if (text := tokenizer.decode([token])).startswith(" ") and text[1:].isalpha() and text.isascii()
    ]

    def text(size: int) -> str:
        """Words that are one token each, whatever stands before them."""
        return tokenizer.decode(numbers.choices(plain, k=size))

    rows = [{"prompt": text(prompt), "chosen": text(answer), "rejected": text(answer)} for _ in range(pairs)]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    ids = [tokenizer(row["prompt"] + row[name]).input_ids for row in rows for name in ("chosen", "rejected")]
    return sum(len(each) + 1 for each in ids)


def measure(
    model: Path, *, ratios: list[float], rounds: int, pairs: int, answer: int
) -> Iterator[list[dict[str, Any]]]:
    """At each length of the prompt a line for each step of each arm; round 0 is the warm-up."""
    for share in ratios:
        lines: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as around:
            folder = Path(scratch)
            (folder / "base").symlink_to(model.absolute())
            tokens = write_pairs(folder, pairs=pairs, prompt=round(share * answer), answer=answer)
            processes = [Process(arm, folder, around, module="bench.preference.arms") for arm in ARMS]
            for number in range(rounds + 1):
                first = number % len(processes)
                for process in (*processes[first:], *processes[:first]):
                    turn = {"kind": "step", "ratio": share, "round": number, "arm": process.name, "tokens": tokens}
                    lines.append(turn | {"load": os.getloadavg()[0]} | process.step())
                seconds = ", ".join(f"{line['arm']} {line['cpu_seconds']:.2f}" for line in lines[-len(ARMS) :])
                print(f"prompt {share:g} x answer, round {number}: {seconds}", flush=True)
        yield lines


def table(machine: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """Tokens a CPU second by arm (of both documents, however often the prompt is computed), and paired ratios."""
    rows = ["| prompt, of an answer | tokens | " + " | ".join(ARMS) + " | against TRL | second epoch against TRL's |"]
    rows.append("| --- |" + " ---: |" * (len(ARMS) + 3))
    for share in dict.fromkeys(line["ratio"] for line in lines):
        timed = {
            arm: [line for line in lines if (line["ratio"], line["arm"]) == (share, arm) and line["round"]]
            for arm in ARMS
        }
        speeds = [statistics.median(line["tokens"] / line["cpu_seconds"] for line in timed[arm]) for arm in ARMS]
        shown = []
        for peer, own_arm in ((TRL, FIRST), (PRECOMPUTED, KEPT)):
            steps = zip(timed[peer], timed[own_arm], strict=True)
            shown.append(str(ratio([math.log(one["cpu_seconds"] / own["cpu_seconds"]) for one, own in steps])))
        tokens = timed[FIRST][0]["tokens"]
        rows.append(
            f"| {share:g} x | {tokens:,} | "
            + " | ".join(f"{speed:,.0f}" for speed in speeds)
            + f" | {' | '.join(shown)} |"
        )
    load = max(line["load"] for line in lines)
    return "\n".join(
        [
            "# Steps of DPO: tokens of both documents a CPU second, one thread",
            "",
            f"{machine}; highest load {load:.1f}. Ratios are of CPU seconds of paired steps, median and 95 % interval.",
            "",
            "In a second epoch the reference is known: to ours from the first, to TRL from a pass that is left out.",
            "",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a real base; needed but for --table")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.results / "steps.jsonl"
    if not options.table:
        if not options.model:
            parser.error("--model is needed to measure")
        path.unlink(missing_ok=True)
        append(path, {"kind": "run", "machine": described("cpu")})
        sizes = {"rounds": options.rounds, "pairs": options.pairs, "answer": options.answer}
        for lines in measure(options.model, ratios=options.ratios, **sizes):
            for line in lines:
                append(path, line)
    run, *lines = read(path)
    text = table(run["machine"], lines)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
