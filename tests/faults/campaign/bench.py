"""The bench on which trials run: the inputs, the reference runs that nobody disturbs, and a folder for each trial."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from faults.campaign.processes import ENVIRONMENT, Process
from faults.campaign.subjects import STEPS, Inputs, Subject, adapter_bytes, environment, steps_in

ROWS = {"rows.jsonl": 70, "more.jsonl": 30}
PAIRS, PAIR_ROWS = "pairs.jsonl", 60
"""So many that runs of both losses begin a second epoch, in which the reference is known."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An uninterrupted run: what every other has to end with, and how long its parts took.

    `step_seconds` is the longest time from the beginning of the training, or from one step, to the next.
    """

    adapter: bytes
    losses: list[tuple[int, float]]
    seconds: float
    save_seconds: float
    step_seconds: float


@dataclass(kw_only=True)
class Bench:
    """Where trials of one subject run. `references` are made when first asked for, by start and settings.

    `total` is the number of trials that the whole campaign has.
    """

    folder: Path
    subject: Subject
    inputs: Inputs
    total: int = 0
    references: dict[tuple[str, ...], Reference] = field(default_factory=dict)

    def start(
        self, out: Path, *extra: str, start: str = "forked", prepare: Callable[[], None] | None = None
    ) -> Process:
        """Start the subject's command for `out`, forked or cold; `prepare` is called in the child before."""
        command = self.subject.command(self.inputs, out, *extra)
        main = partial(self._exec if start == "cold" else self._call, command, prepare)
        number = len(list(out.parent.glob("log-*")))
        log = out.parent / f"log-{number}"
        return Process(main, cwd=out.parent, log=log, environment=environment(out.parent / "cache"))

    def _call(self, command: list[str], prepare: Callable[[], None] | None) -> None:
        if prepare:
            prepare()
        self.subject.call(command)

    def _exec(self, command: list[str], prepare: Callable[[], None] | None) -> None:
        if prepare:
            prepare()
        os.execv(sys.executable, [sys.executable, *command])

    def fresh(self, name: str) -> Path:
        """An empty folder for a trial; returns the run directory to be made in it."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place / "out"

    def reference(self, *extra: str, start: str = "forked") -> Reference:
        """The run that nobody disturbs, with these settings; its saves are timed from outside."""
        key = (start, *extra)
        if key not in self.references:
            out = self.fresh(f"reference-{len(self.references)}-{os.getpid()}")
            process = self.start(out, *extra, start=start)
            saves, steps = watched(process, lambda: self.subject.is_saving(out))
            ended, adapter = process.finish(), adapter_bytes(out)
            assert ended.exit_code == 0, (ended, process.text()[-3000:])
            assert adapter is not None
            losses = self.subject.losses(out)
            assert [step for step, _ in losses] == list(range(1, STEPS + 1)), losses
            self.references[key] = Reference(
                adapter=adapter,
                losses=losses,
                seconds=ended.seconds,
                save_seconds=statistics.median(saves) if saves else 0.02,
                step_seconds=max(steps, default=0.0),
            )
        return self.references[key]


def watched(process: Process, is_saving: Callable[[], bool]) -> tuple[list[float], list[float]]:
    """Poll until the process ends: the seconds that each save lasted, and that each step took, as seen from outside."""
    saves: list[float] = []
    marks: list[float] = []
    began = None
    while not process.wait(0.0005):
        now, text = time.monotonic(), process.text()
        if is_saving():
            began = began or now
        elif began:
            saves.append(now - began)
            began = None
        reached = len(steps_in(text)) + 1 if "training ..." in text else 0
        marks += [now] * (reached - len(marks))
    return saves, [later - earlier for earlier, later in pairwise(marks)]


def make_inputs(folder: Path) -> Inputs:
    """Make the model and the rows, in a process of its own so that this one starts no thread."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(model=folder / "base", rows=tuple(folder / name for name in ROWS), pairs=folder / PAIRS)

    def make() -> None:
        import tiny

        tiny.make_llama(inputs.model)
        for seed, file in enumerate(inputs.rows):
            tiny.write_rows(file, rows=ROWS[file.name], seed=seed)
        answers = [(f"{number} stones {number % 7}", " lamp" * (1 + number % 5)) for number in range(PAIR_ROWS)]
        pairs = [{"prompt": prompt, "chosen": answer, "rejected": " cat, stone"} for prompt, answer in answers]
        inputs.pairs.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), "utf-8")

    ended = Process(make, cwd=folder, log=folder / "log", environment=ENVIRONMENT).finish()
    assert ended.exit_code == 0, (folder / "log").read_text(encoding="utf-8")
    return inputs
