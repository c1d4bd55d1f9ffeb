"""The repeat: `loradock train` in a process of its own, stopped after the steps that are asked for."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from loradock.config.schema import RunConfig
from loradock.errors import Interrupted, LoradockError, Stopped
from loradock.files import atomic_io
from loradock.process import python
from loradock.training.run_dir.record import metrics

POLL_SECONDS = 0.2
SHOWN_LINES = 12


class NotRepeated(LoradockError):
    """The repeat did not come as far as it was asked to; `exit_code` is that of the training."""


def repeat(
    config: RunConfig,
    *,
    processes: int,
    steps: int | None,
    evaluation: int = 0,
    options: tuple[str, ...] = (),
    on_step: Callable[[int], None],
) -> None:
    """Train; with `steps` the run is stopped after so many, and keeps what it made.

    It is that far only with the evaluation of step `evaluation`; 0: there is none to wait for.
    The same call continues it, also with more steps. NotRepeated with the last lines of the log where training fails.
    """
    output = Path(config.output or "")
    log, file = output.with_name(f"{output.name}.log"), output.with_name(f"{output.name}.yaml")
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_io.replace(file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))

    def is_measured() -> bool:
        return steps is not None and last_step(output) >= steps and last_step(output, "eval") >= evaluation

    if is_measured():
        return
    launcher = ("launch", "--nproc", str(processes)) if processes > 1 else ()
    stop = () if steps is None else ("--stop-after", str(steps))
    arguments = ("-m", "loradock", *launcher, "train", str(file), "--output", str(output), *stop, *options)
    with log.open("a", encoding="utf-8") as stream, child(python.command(*arguments), stream) as process:
        shown = 0
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            current = last_step(output)
            if current > shown:
                shown = current
                on_step(shown)
        code = process.returncode
    if code and not (code in (Stopped.exit_code, Interrupted.exit_code) and is_measured()):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # The file names every value, so what has no effect is no choice of anybody's.
        last = [line for line in lines if not line.startswith("warning: ")][-SHOWN_LINES:]
        error = NotRepeated("the training that repeats the run failed:\n  " + "\n  ".join(last), hint=f"its log: {log}")
        error.exit_code = code
        raise error


@contextmanager
def child(command: list[str], stream: object) -> Iterator[subprocess.Popen[bytes]]:
    """The process; ended where this one is."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def last_step(output: Path, kind: str = "train") -> int:
    """The last step that a run has a line of this kind for; 0 where there is none yet."""
    lines = metrics(output, kind) if output.is_dir() else []
    return int(lines[-1]["step"]) if lines else 0
