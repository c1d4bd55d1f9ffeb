"""What an arm is given and what it says: a task in, one line of JSON an optimiser step out, a summary at the end."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LORA = {"r": 16, "lora_alpha": 32, "bias": "none", "task_type": "CAUSAL_LM"}
LEARNING_RATE = 2e-4
SCHEDULE = "constant"
VANILLA_ROWS = 8
"""Rows of a padded micro-batch: TRL's default, and that of unsloth's notebooks or more."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to train: the module of `arms` that runs it, what it is, and the settings that this module reads."""

    kind: str
    about: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Task:
    """One slice: an arm, a model, rows. `began` is the time (seconds since 1970) at which its process was started.

    `samples` go into one optimiser step; `budget_tokens` is the size of a micro-batch for arms that do not pad (for
    ours the plan decides); `longest` counts the tokens of the longest row. Training ends after `steps` optimiser steps
    or `limit_seconds` after `began`, whichever is first. `scratch` is empty, and removed when the slice is over.
    `threads` are the CPUs that the process is kept on (0: all).
    """

    arm: str
    settings: dict[str, Any]
    device: str
    model: str
    rows: str
    adapter: str
    scratch: str
    steps: int
    samples: int
    longest: int
    budget_tokens: int
    attention: str
    seed: int
    dropout: float
    threads: int
    limit_seconds: float
    began: float
    command: list[str] = field(default_factory=list[str])

    @classmethod
    def read(cls) -> Task:
        """The task of this process: the file that its argument names. The process is kept on its CPUs from now on."""
        task = cls(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        if task.threads:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.threads])
        return task

    def write(self, path: Path) -> Path:
        """To a file for the process that is to do it."""
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        return path

    @property
    def dtype(self) -> str:
        """The compute dtype."""
        return "bfloat16" if self.device == "cuda" else "float32"

    @property
    def is_over(self) -> bool:
        """True once the time is up."""
        return time.time() - self.began > self.limit_seconds

    def micro_batch(self, mean_tokens: float) -> int:
        """Rows of a micro-batch: padded 8, else the largest divisor of `samples` that the budget holds on average."""
        if self.settings.get("batch", "padded") == "padded":
            return min(VANILLA_ROWS, self.samples)
        fitting = [
            n for n in range(1, self.samples + 1) if not self.samples % n and n * mean_tokens <= self.budget_tokens
        ]
        return max(fitting, default=1)


class Report:
    """Lines of JSON on what was stdout; what libraries print there goes to stderr from now on."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def step(self, number: int, *, at: float, loss: float, tokens: int, supervised_tokens: int, samples: int) -> None:
        """An optimiser step that was done (on the device, too) at `at`, seconds since 1970.

        `loss` is the mean over its supervised tokens in nats, `tokens` are real ones, without padding.
        """
        counts = {"tokens": tokens, "supervised_tokens": supervised_tokens, "samples": samples}
        self.line(step=number, loss=loss, **counts, seconds=round(at - self.task.began, 4))

    def summary(self, **values: Any) -> None:
        """What is known at the end: packages and memory."""
        usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self.line(summary={"peak_rss_bytes": usage * 1024, **values})

    def line(self, **values: Any) -> None:
        """One line."""
        print(json.dumps(values), file=self.stream, flush=True)


def adapter_digest(named: Mapping[str, Any]) -> str:
    """The first 16 digits of a sha256 over adapter values as float32, by the names that a saved adapter gives them."""
    digest = hashlib.sha256()
    for name in sorted(named):
        digest.update(named[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
