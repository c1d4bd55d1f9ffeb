"""What a step of scripts/gpu is, and what it is given: a session that runs commands and keeps what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT

WORDS = 6
"""Lines at the end of a log that are kept as the reason of a failure."""


class CannotRun(Exception):
    """This machine lacks what the step needs; the text names it."""


class Left(Exception):
    """The step has more to do than fitted in its time: it goes on where it was when it is run again."""


class Failed(Exception):
    """A command of the step ended with an error; the text says with which."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: the questions of docs/gpu.md that it answers, and the work, which returns the last of the answer.

    It is killed after `seconds` (`tiny_seconds` in a rehearsal). One that keeps what it did and goes on may begin
    where only `least_seconds` are left. `runs`: after so many that did not come to an end it is given up.
    """

    name: str
    about: str
    questions: tuple[int, ...]
    work: Callable[[Session], dict[str, Any]]
    seconds: int
    tiny_seconds: int = 300
    least_seconds: int | None = None
    runs: int = 3

    def limit(self, *, is_tiny: bool) -> int:
        """Seconds after which it is killed."""
        return self.tiny_seconds if is_tiny else self.seconds

    def least(self, *, is_tiny: bool) -> int:
        """Seconds without which it is not begun."""
        limit = self.limit(is_tiny=is_tiny)
        return min(limit, self.least_seconds) if self.least_seconds else limit


@dataclass(kw_only=True)
class Session:
    """What a step is given: sizes, places, and `ends`, the time (seconds since 1970) at which it will be killed.

    `out` comes back from the machine and holds few files; `work` is for models and runs and may be lost. `identity`
    is that of the stack (`stack.identity`).
    """

    name: str
    out: str
    work: str
    is_tiny: bool
    ends: float
    identity: str
    gpus: int = 1
    unsloth_packages: str = ""
    answer: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def seconds_left(self) -> float:
        """Until the step is killed."""
        return self.ends - time.time()

    def need_gpus(self, count: int) -> None:
        """CannotRun where there are fewer GPUs than that."""
        if self.gpus < count:
            raise CannotRun(f"needs {count} GPUs, this machine has {self.gpus}")

    @property
    def small(self) -> str:
        """The model of about 1B weights."""
        return "tiny" if self.is_tiny else "tinyllama-1.1b"

    @property
    def large(self) -> str:
        """The model of about 7B weights."""
        return "tiny" if self.is_tiny else "mistral-7b"

    @property
    def log(self) -> Path:
        """Where everything is logged."""
        return Path(self.out, "log.txt")

    @property
    def answer_file(self) -> Path:
        """What the step said so far."""
        return Path(self.work, "answers", f"{self.name}.json")

    def say(self, **parts: Any) -> None:
        """Keep parts of the answer now: they stay when the step is killed."""
        self.answer |= parts
        self.write({"answer": self.answer})

    def write(self, content: Mapping[str, Any]) -> None:
        """Put what the runner reads in place, whole."""
        from loradock.files import atomic_io

        self.answer_file.parent.mkdir(parents=True, exist_ok=True)
        atomic_io.replace(self.answer_file, json.dumps(content) + "\n")

    def folder(self, name: str = "") -> Path:
        """A place of this step, made where it is not there."""
        made = Path(self.work, "steps", self.name, name)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def kept(self, file: str) -> Path:
        """A folder in which `file` is a link to one that comes back from the machine, its name that of this stack."""
        folder = Path(self.work, "kept", self.identity)
        folder.mkdir(parents=True, exist_ok=True)
        name, _, ending = file.partition(".")
        link = folder / file
        link.unlink(missing_ok=True)
        link.symlink_to(Path(self.out, f"{name}-{self.identity}.{ending}"))
        return folder

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, ends_with: tuple[int, ...] = (0,)
    ) -> str:
        """Run a command in the repository's root; its stdout. Raises Failed unless it ends as it should."""
        began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(map(str, command))}\n".encode())
            log.flush()
            done = subprocess.run(
                [str(word) for word in command],
                check=False,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.answer["exit_code"] = done.returncode
        if done.returncode not in ends_with:
            raise Failed(f"exit code {done.returncode}: {last_words(self.log, began) or last_lines(done.stdout)}")
        return done.stdout

    def python(self, *arguments: str | Path, **more: Any) -> str:
        """`run` this Python."""
        return self.run(sys.executable, *arguments, **more)

    def model(self, name: str) -> Path:
        """The directory of a random model, made where it is not there (a 7B model: 14.5 GB)."""
        folder = Path(self.work, "models")
        target = folder / f"{name}-cuda"
        if not (target / "made.json").exists():
            self.python("-m", "bench.train.models", name, folder, "cuda")
        return target

    def rows(self, model: Path, *, name: str = "commonsense", count: int) -> Path:
        """JSONL with `count` rows of a set of `bench.train.rows` for that model."""
        from bench.train import rows

        folder = rows.make(name, model=model, folder=Path(self.work, "rows"), steps=1, samples=count, seed=0)
        return folder / "rows.jsonl"

    def task(self) -> str:
        """For the process of the step."""
        return json.dumps(asdict(self))


def last_words(log: Path, began: int) -> str:
    """The end of what was logged since the byte `began`, as one line."""
    with log.open("rb") as file:
        file.seek(began)
        return last_lines(file.read().decode(errors="replace").split("\n", 1)[-1])


def last_lines(text: str) -> str:
    """The end of a text as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-WORDS:])[-800:]
