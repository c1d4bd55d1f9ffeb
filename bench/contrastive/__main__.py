"""Contrastive training against sentence-transformers': `python -m bench.contrastive`, in the repository's root.

    .venv/bin/python -m bench.contrastive                    ten minutes; needs the dev extra
    .venv/bin/python -m bench.contrastive --lengths equal    the control: documents of one length, so nothing to pad
    .venv/bin/python -m bench.contrastive --table            only the table, from the lines of the last run
    .venv/bin/python -m bench.contrastive --rounds 3 --pairs 4 --layers 2 --results DIRECTORY

Each arm is a process of one thread that holds model, adapter and the same batch; a round is one whole optimiser step of
each, one after another, and begins with another arm each time. Lines of steps go to
bench/results/contrastive/LENGTHS.jsonl, the table to LENGTHS.md. Exit code 1 where losses or gradient norms of the arms
differ by more than the bound: a speed at another loss says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.contrastive.arms import CACHED_MNRL, MNRL, OURS, PRODUCTS, SORTED
from bench.contrastive.subject import LAYERS, LORA, Subject, made
from bench.contrastive.tables import BOUND, WARM_UP, disagreement, table
from bench.floor.machine import described
from bench.monitoring.runs import SHAPE
from bench.train.lines import append, read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "contrastive"
MINI_BATCHES = (4, 8, 32)
"""Rows of the cached loss's mini-batches; the best of them is the peer. 32 is its default."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


class Process:
    """An arm that waits for its turns; another one is made once it does."""

    def __init__(self, name: str, folder: Path, around: ExitStack, *, module: str = "bench.contrastive.arms") -> None:
        self.name = name
        self._log = around.enter_context((folder / f"{name}.log").open("w+", encoding="utf-8"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), name],
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD, **QUIET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        around.callback(self._end)
        self._answer()

    def step(self) -> dict[str, Any]:
        """One step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Its next line. SystemExit with what it said where it has ended."""
        assert self._process.stdout is not None
        if answer := self._process.stdout.readline():
            return json.loads(answer)
        self._log.seek(0)
        raise SystemExit(f"{self.name} ended: {self._log.read()[-2000:]}")

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(folder: Path, arms: list[str], *, rounds: int) -> list[dict[str, Any]]:
    """A line for each step of each arm, the warm-up's too."""
    lines: list[dict[str, Any]] = []
    with ExitStack() as around:
        processes = [Process(arm, folder, around) for arm in arms]
        for number in range(WARM_UP, WARM_UP + 1 + rounds):
            first = number % len(processes)
            for process in (*processes[first:], *processes[:first]):
                turn = {"kind": "step", "round": number, "arm": process.name, "load": os.getloadavg()[0]}
                lines += [turn | process.step()]
            print(f"round {number}: " + ", ".join(f"{x['arm']} {x['cpu_seconds']:.2f}" for x in lines[-len(arms) :]))
    return lines


def about(subject: Subject, *, layers: int) -> dict[str, Any]:
    """What was trained on what."""
    return {
        "layers": layers,
        "hidden": SHAPE["hidden_size"],
        "rank": LORA["r"],
        "documents": len(subject.lengths),
        "tokens": subject.tokens,
        "shortest": min(subject.lengths),
        "longest": max(subject.lengths),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", choices=("mixed", "equal"), default="mixed")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--mini-batches", type=int, nargs="+", default=MINI_BATCHES)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.results / f"{options.lengths}.jsonl"
    if not options.table:
        cached = [f"{CACHED_MNRL}-{size}" for size in options.mini_batches]
        arms = [*OURS, MNRL, *cached, f"{SORTED}{cached[0]}", PRODUCTS]
        machine = {**described("cpu"), "sentence_transformers": version("sentence-transformers")}
        with tempfile.TemporaryDirectory() as scratch:
            is_mixed = options.lengths == "mixed"
            subject = made(Path(scratch), pairs=options.pairs, is_mixed=is_mixed, layers=options.layers)
            lines = measure(Path(scratch), arms, rounds=options.rounds)
        path.unlink(missing_ok=True)
        append(path, {"kind": "run", "machine": machine, "subject": about(subject, layers=options.layers)})
        for line in lines:
            append(path, line)
    run, *lines = read(path)
    text = table(run["machine"], run["subject"], lines)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    apart = disagreement(lines)
    if max(apart.values()) > BOUND:
        raise SystemExit(f"the arms do not compute the same: {apart}")


if __name__ == "__main__":
    main()
