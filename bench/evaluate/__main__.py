"""Rows a second of `evaluate`, lm-eval and LLM-Adapters' loop: `python -m bench.evaluate --model DIR --tasks DIR`.

Each arm is a process of one thread that holds the model; a round is the same rows in each, one arm after another, and
begins with another arm each time. lm-eval is no dependency: install it into a folder and name that with --lm-eval.
Lines go to bench/results/evaluate/rounds.jsonl, the table to rounds.md. Exit code 1 where log-probabilities of ours
and lm-eval differ by more than the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.evaluate.arms import BEAMS, LM_EVAL, OURS, OURS_BEAMS
from bench.evaluate.tables import BOUND, apart, table
from bench.floor.machine import described
from bench.train.lines import append, read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "evaluate"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


class Process:
    """An arm that waits for its turns."""

    def __init__(
        self, name: str, asked: dict[str, Any], around: ExitStack, *, scratch: Path, lm_eval: Path | None
    ) -> None:
        self.name = name
        self._log = around.enter_context((scratch / f"{name}.log").open("w+", encoding="utf-8"))
        paths = [str(ROOT / "src"), *([str(lm_eval)] if lm_eval and name.startswith(LM_EVAL) else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.evaluate.arms", json.dumps(asked), name],
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD, **QUIET, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        around.callback(self._end)
        self.rows: int = self._answer()["rows"]

    def answer(self, rows: list[int]) -> dict[str, Any]:
        """One round."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(rows) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Its next line. SystemExit with what it said where it has ended."""
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._log.seek(0)
        raise SystemExit(f"{self.name} ended: {self._log.read()[-2000:]}")

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(processes: list[Process], *, rounds: int, rows: int) -> list[dict[str, Any]]:
    """A line for each round of each arm; the first round warms up."""
    lines: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        chosen = [(number * rows + place) % processes[0].rows for place in range(rows)]
        first = number % len(processes)
        for process in (*processes[first:], *processes[:first]):
            turn = {"round": number, "arm": process.name, "load": os.getloadavg()[0]}
            lines.append(turn | process.answer(chosen))
        shown = ", ".join(f"{each['arm']} {each['cpu_seconds']:.1f}" for each in lines[-len(processes) :])
        print(f"round {number}: {shown}", flush=True)
    return lines


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a base, merged model, adapter or run")
    parser.add_argument("--tasks", type=Path, required=True, help="where boolq, arc-easy and openbookqa lie")
    parser.add_argument("--lm-eval", type=Path, help="the folder that holds it; without it that peer is left out")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=(1, 16), help="of lm-eval")
    parser.add_argument("--beam-batch-sizes", type=int, nargs="*", default=(1, 8), help="of LLM-Adapters' loop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=48, help="of a round")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    peers = [f"{LM_EVAL}-{size}" for size in options.batch_sizes] if options.lm_eval else []
    beams = [OURS_BEAMS, *(f"{BEAMS}-{size}" for size in options.beam_batch_sizes)] if options.beam_batch_sizes else []
    asked = {"model": str(options.model), "tasks": str(options.tasks), "limit": 500}
    with ExitStack() as around:
        arms = [OURS, *peers, *beams]
        scratch = Path(around.enter_context(tempfile.TemporaryDirectory()))
        processes = [Process(name, asked, around, scratch=scratch, lm_eval=options.lm_eval) for name in arms]
        lines = measure(processes, rounds=options.rounds, rows=options.rows)
    machine = {**described("cpu"), "lm_eval": version_in(options.lm_eval), "model": options.model.name}
    path = options.results / "rounds.jsonl"
    path.unlink(missing_ok=True)
    append(path, {"machine": machine})
    for line in lines:
        append(path, line)
    head, *lines = read(path)
    text = table(head["machine"], lines)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    if apart(lines) > BOUND:
        raise SystemExit(f"log-probabilities differ by {apart(lines):.1e}")


def version_in(folder: Path | None) -> str:
    """lm-eval's version in the folder that it was installed into."""
    found = sorted(folder.glob("lm_eval-*.dist-info")) if folder else []
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else "not run"


if __name__ == "__main__":
    main()
